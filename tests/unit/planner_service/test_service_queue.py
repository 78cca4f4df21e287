"""Many clients at once: back-pressure with a pause to wait, turns among jobs, nothing left afterwards."""

import asyncio
import dataclasses
from typing import Any

import grpc
import grpc.aio
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner import fair_queue
from infinipipe_planner.fair_queue import FairQueue, Ticket
from infinipipe_planner.job_records import JobId
from infinipipe_planner.status import RETRY_PAUSE_KEY
from support_service import CONFIG, FakeSolver, job_spec, plan_request, refused, submission, until, with_service

RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
CLIENT_COUNT = 200


def pause_of(error: Any) -> str | None:
    """The milliseconds that the service asks to wait before another attempt."""
    pauses_ms = [value for key, value in error.trailing_metadata() if key == RETRY_PAUSE_KEY]
    return pauses_ms[0] if pauses_ms else None


def test_two_hundred_clients_of_a_small_queue_are_put_off_and_all_get_their_plans_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "RETRY_PAUSE_S", 0.02)
    solver = FakeSolver(is_held=True)
    put_off: set[str] = set()

    async def train(stub: Any, job: str) -> int:
        await stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()))
        while True:
            try:
                await stub.SubmitBatch(submission(job, 0))
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is RESOURCE_EXHAUSTED
                assert pause_of(error) == "20"
                put_off.add(job)
                await asyncio.sleep(0.02)
                if len(put_off) == CLIENT_COUNT - 20:
                    solver.let_go()
        step: int = (await stub.GetPlan(plan_request(job, 0))).plan.step
        return step

    async def scenario(stub: Any) -> None:
        await stub.ListJobs(pb.ListJobsRequest())
        before = len(asyncio.all_tasks())

        steps = await asyncio.gather(*(train(stub, f"job-{number}") for number in range(CLIENT_COUNT)))

        assert steps == [0] * CLIENT_COUNT
        assert len(solver.solved_steps) == CLIENT_COUNT
        await until(lambda: len(asyncio.all_tasks()) <= before)

    with_service(solver, scenario, dataclasses.replace(CONFIG, max_batches=20))


def test_a_job_of_one_batch_is_solved_before_the_many_of_another() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        for job in ("greedy", "modest"):
            await stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()))
        for step in range(20):
            await stub.SubmitBatch(submission("greedy", step))

        position = (await stub.SubmitBatch(submission("modest", 1000))).queue_position
        solver.let_go()
        await stub.GetPlan(plan_request("modest", 1000))
        await stub.GetPlan(plan_request("greedy", 19))

        assert position == 3  # two are being solved, one of the others has its turn
        assert solver.solved_steps.index(1000) == 3

    with_service(solver, scenario)


def test_a_job_with_too_many_unsolved_batches_is_put_off_and_the_other_jobs_are_not() -> None:
    async def scenario(stub: Any) -> None:
        for job in ("a", "b"):
            await stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()))
        for step in range(3):
            await stub.SubmitBatch(submission("a", step))

        code, sentence = await refused(stub.SubmitBatch(submission("a", 3)))

        assert code is RESOURCE_EXHAUSTED
        assert sentence == "3 batches of job 'a' are unsolved, at most 3 may be; try again in 1 s"
        await stub.SubmitBatch(submission("a", 2))  # the same batch again takes no more room
        await stub.SubmitBatch(submission("b", 0))
        states = [plan.step for plan in (await stub.ListPlans(pb.ListPlansRequest(job="a"))).plans]
        assert states == [0, 1, 2]

    with_service(FakeSolver(is_held=True), scenario, dataclasses.replace(CONFIG, max_batches_per_job=3))


def test_clients_without_a_job_that_vanish_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = FakeSolver(is_held=True)
    entered: list[Ticket] = []
    left: list[Ticket] = []
    enter, leave = FairQueue.enter, FairQueue.leave

    def spy_enter(queue: FairQueue, job: JobId) -> Ticket:
        entered.append(enter(queue, job))
        return entered[-1]

    def spy_leave(queue: FairQueue, ticket: Ticket) -> None:
        left.append(ticket)
        leave(queue, ticket)

    monkeypatch.setattr(FairQueue, "enter", spy_enter)
    monkeypatch.setattr(FairQueue, "leave", spy_leave)

    async def scenario(stub: Any) -> None:
        request = pb.SolvePlanRequest(profile=job_spec().profile, lengths_tokens=(3, 4))
        calls = [stub.SolvePlan(request) for _ in range(4)]
        await until(lambda: (len(entered), len(solver.solved_steps)) == (4, 2))
        code, sentence = await refused(stub.SolvePlan(request))
        assert code is RESOURCE_EXHAUSTED
        assert "4 batches of callers without a job are unsolved" in sentence

        for call in calls:
            call.cancel()
        await until(lambda: len(left) == 4)
        solver.let_go()

        assert set(left) == set(entered)
        assert solver.cancelled_steps == solver.solved_steps
        assert (await stub.SolvePlan(request)).plan.step == 0

    with_service(solver, scenario, dataclasses.replace(CONFIG, max_batches_per_job=4))


def test_steps_of_a_deleted_job_give_their_places_back() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        for job in ("a", "b"):
            await stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()))
        for step in range(4):
            await stub.SubmitBatch(submission("a", step))
        await refused(stub.SubmitBatch(submission("b", 9)))

        await stub.DeleteJob(pb.DeleteJobRequest(job="a"))
        await stub.SubmitBatch(submission("b", 9))
        solver.let_go()

        assert (await stub.GetPlan(plan_request("b", 9))).plan.job == "b"

    with_service(solver, scenario, dataclasses.replace(CONFIG, max_batches=4))


def test_a_message_that_is_too_large_is_refused_without_a_pause() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.SubmitBatch(submission("a", 0, (2**27,) * 5_000_000))

        assert caught.value.code() is RESOURCE_EXHAUSTED
        assert pause_of(caught.value) is None

    with_service(FakeSolver(), scenario)
