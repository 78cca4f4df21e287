"""GetPlan waits: before the submission, under a deadline, and never past a deletion, a new generation or a shutdown."""

import asyncio
import logging
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_planner import retention
from infinipipe_planner.errors import InfeasibleBatchError, SolverLostError
from infinipipe_planner.job_records import JobId, StoredStep
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.server import start_server
from support_service import CONFIG, FakeSolver, job_spec, plan_request, refused, submission, until, with_service

FAILED_PRECONDITION, INTERNAL = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INTERNAL
DEADLINE_S = 0.2
LOOKS: list[int] = []


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that the service has looked up: a call that looked and was not answered waits."""
    find_step = JobStore.find_step

    def spy(store: JobStore, job_id: JobId, generation: int, step: int) -> StoredStep | None:
        LOOKS.append(step)
        return find_step(store, job_id, generation, step)

    monkeypatch.setattr(JobStore, "find_step", spy)
    LOOKS.clear()


async def begin_wait(stub: Any, step: int, *, generation: int = 1, job: str = "a") -> Any:
    """Send GetPlan and return the call once the service has begun to wait."""
    before = len(LOOKS)
    call = stub.GetPlan(plan_request(job, step, generation))
    await until(lambda: len(LOOKS) > before)
    return call


def test_a_plan_asked_for_before_its_batch_arrives_when_it_is_planned() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        calls = [await begin_wait(stub, 4) for _ in range(3)]

        await stub.SubmitBatch(submission("a", 4))

        assert [response.plan.step for response in await asyncio.gather(*calls)] == [4, 4, 4]

    with_service(FakeSolver(), scenario)


def test_the_callers_deadline_ends_the_wait_and_the_service_goes_on() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        code, _ = await refused(stub.GetPlan(plan_request("a", 0), timeout=DEADLINE_S))

        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await stub.SubmitBatch(submission("a", 0))
        assert (await stub.GetPlan(plan_request("a", 0))).plan.step == 0

    with_service(FakeSolver(), scenario)


def test_clients_that_vanish_while_they_wait_leave_no_task_behind() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        before = len(asyncio.all_tasks())
        calls = [await begin_wait(stub, step) for step in range(20)]
        assert len(asyncio.all_tasks()) >= before + 20

        for call in calls:
            call.cancel()

        await until(lambda: len(asyncio.all_tasks()) <= before)

    with_service(FakeSolver(), scenario)


def test_deleting_a_job_wakes_everybody_who_waits_for_it() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        calls = [await begin_wait(stub, 0), await begin_wait(stub, 1)]

        await stub.DeleteJob(pb.DeleteJobRequest(job="a"))

        for call in calls:
            assert await refused(call) == (grpc.StatusCode.NOT_FOUND, "there is no job 'a'")
        await until(lambda: solver.cancelled_steps == [0])

    with_service(solver, scenario)


def test_a_waiter_never_gets_the_plan_of_a_later_job_of_the_same_name() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        call = await begin_wait(stub, 0)

        # Sent together, so that the service may handle all of them before the waiter runs again.
        await asyncio.gather(
            stub.DeleteJob(pb.DeleteJobRequest(job="a")),
            stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec())),
        )

        code, _ = await refused(call)
        assert code is grpc.StatusCode.NOT_FOUND

    with_service(FakeSolver(), scenario)


def test_a_new_generation_wakes_everybody_who_waits_in_the_old_one() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        call = await begin_wait(stub, 0)

        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        code, sentence = await refused(call)
        assert code is FAILED_PRECONDITION
        assert "generation 1 is old, the newest is 2" in sentence

    with_service(FakeSolver(), scenario)


def test_other_jobs_keep_waiting_when_one_is_deleted() -> None:
    async def scenario(stub: Any) -> None:
        for name in ("a", "b"):
            await stub.CreateJob(pb.CreateJobRequest(job=name, spec=job_spec()))
        call = await begin_wait(stub, 0, job="b")

        await stub.DeleteJob(pb.DeleteJobRequest(job="a"))
        await stub.SubmitBatch(submission("b", 0))

        assert (await call).plan.job == "b"

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (
            InfeasibleBatchError(1, 2e9, 1e9, "use more stages"),
            FAILED_PRECONDITION,
            "stage 1 needs 2,000,000,000 bytes",
        ),
        (SolverLostError("solver process 0 died twice"), INTERNAL, "solver process 0 died twice"),
    ],
)
def test_a_failed_solve_gives_every_waiter_the_same_status(
    error: Exception, code: grpc.StatusCode, sentence: str
) -> None:
    solver = FakeSolver()
    solver.errors[0] = error

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        early = [await begin_wait(stub, 0) for _ in range(2)]
        await stub.SubmitBatch(submission("a", 0))
        answers = [await refused(call) for call in early]
        answers.append(await refused(stub.GetPlan(plan_request("a", 0))))

        assert len(set(answers)) == 1
        assert answers[0][0] is code
        assert sentence in answers[0][1]
        assert solver.solved_steps == [0]

    with_service(solver, scenario)


def fields_of(record: logging.LogRecord) -> tuple[object, ...]:
    return tuple(getattr(record, name, None) for name in ("job", "generation", "step"))


def test_an_unexpected_error_is_logged_with_its_traceback_and_told_without(caplog: pytest.LogCaptureFixture) -> None:
    solver = FakeSolver()
    solver.errors[0] = KeyError("secret detail")

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        request = pb.SolvePlanRequest(profile=job_spec().profile, lengths_tokens=(3,))
        for call in (stub.GetPlan(plan_request("a", 0)), stub.SolvePlan(request)):
            code, sentence = await refused(call)
            assert code is INTERNAL
            assert "failed inside the planner (KeyError); its log says more" in sentence
            assert "secret" not in sentence
            assert "Traceback" not in sentence

    with caplog.at_level(logging.ERROR):
        with_service(solver, scenario)
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in logged] == ["planning step 0 of job 'a' failed", "SolvePlan failed"]
    assert [fields_of(record) for record in logged] == [("a", 1, 0), (None, None, None)]


def test_an_unexpected_error_in_a_call_is_logged_with_the_job_generation_and_step_it_was_about(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("planted")

    monkeypatch.setattr(JobStore, "find_generation", fail)
    monkeypatch.setattr(JobStore, "find_job", fail)

    async def scenario(stub: Any) -> None:
        await refused(stub.SubmitBatch(submission("a", 7, generation=3)))
        await refused(stub.GetJob(pb.GetJobRequest(job="b")))

    with caplog.at_level(logging.ERROR):
        with_service(FakeSolver(), scenario)
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in logged] == ["SubmitBatch failed", "GetJob failed"]
    assert [fields_of(record) for record in logged] == [("a", 3, 7), ("b", None, None)]


def test_a_step_pushed_out_by_newer_ones_ends_its_solve_and_its_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEPT_STEPS", 2)
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        call = await begin_wait(stub, 0)
        for step in (1, 2):
            await stub.SubmitBatch(submission("a", step))

        code, sentence = await refused(call)

        assert code is grpc.StatusCode.NOT_FOUND
        assert "step 0 is no longer kept" in sentence
        await until(lambda: solver.cancelled_steps == [0])

    with_service(solver, scenario)


def test_stopping_answers_whoever_waits_and_lets_a_started_solve_finish() -> None:
    async def run() -> None:
        solver = FakeSolver(is_held=True)
        server = await start_server(solver, CONFIG)
        async with grpc.aio.insecure_channel(server.address) as channel, asyncio.timeout(20):
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
            await stub.SubmitBatch(submission("a", 0))
            submitted, unsubmitted = await begin_wait(stub, 0), await begin_wait(stub, 1)

            stopping = asyncio.create_task(server.stop(10.0))
            code, sentence = await refused(unsubmitted)
            solver.let_go()

            assert (await submitted).plan.step == 0
            assert (code, sentence) == (grpc.StatusCode.UNAVAILABLE, "the planner is shutting down")
            await stopping

    asyncio.run(run())


def test_a_solve_that_outlasts_the_grace_is_called_off_and_its_waiter_is_told() -> None:
    async def run() -> None:
        solver = FakeSolver(is_held=True)
        server = await start_server(solver, CONFIG)
        async with grpc.aio.insecure_channel(server.address) as channel, asyncio.timeout(20):
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
            await stub.SubmitBatch(submission("a", 0))
            call = await begin_wait(stub, 0)

            await server.stop(0.1)

            assert await refused(call) == (grpc.StatusCode.UNAVAILABLE, "the planner is shutting down")
            assert solver.cancelled_steps == [0]

    asyncio.run(run())
