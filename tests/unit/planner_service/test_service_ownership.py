"""Tokens: who is let in, and that everybody has jobs of their own."""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.secret_files import SecurityError
from infinipipe_planner.server import start_server
from infinipipe_planner.tokens import parse_tokens
from support_service import (
    CONFIG,
    FakeSolver,
    job_spec,
    plan_request,
    refused,
    report_request,
    submission,
    until,
    with_service,
)
from support_service.security import ALICE, BOB, TOKENS, write_secret

GUARDED = dataclasses.replace(CONFIG, tokens_text=TOKENS)
UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, "token missing or not known")


def shows(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def calls_about(stub: Any, job: str, generation: int = 1) -> dict[str, Callable[..., Any]]:
    """One call of every method that is about a job of its own."""
    return {
        "GetJob": lambda **more: stub.GetJob(pb.GetJobRequest(job=job), **more),
        "ListPlans": lambda **more: stub.ListPlans(pb.ListPlansRequest(job=job), **more),
        "GetPlan": lambda **more: stub.GetPlan(plan_request(job, 0, generation), **more),
        "SubmitBatch": lambda **more: stub.SubmitBatch(submission(job, 1, generation=generation), **more),
        "ReportStep": lambda **more: stub.ReportStep(report_request(job, 0, generation), **more),
        "DeleteJob": lambda **more: stub.DeleteJob(pb.DeleteJobRequest(job=job), **more),
    }


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        shows("mallory-0123456789abcdef"),
        shows(ALICE[:-1]),
        shows(ALICE + " "),
        shows(""),
        (("authorization", ALICE),),
        (("authorization", f"Basic {ALICE}"),),
        shows(ALICE) * 2,
    ],
    ids=["none", "unknown", "cut", "longer", "empty", "no scheme", "other scheme", "twice"],
)
def test_a_call_without_a_known_token_is_told_that_and_nothing_else_whatever_it_asks(metadata: Any) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(BOB))

        answers = [await refused(call(metadata=metadata)) for call in calls_about(stub, "a").values()]
        answers.append(await refused(stub.ListJobs(pb.ListJobsRequest(), metadata=metadata)))
        answers.append(await refused(stub.SolvePlan(pb.SolvePlanRequest(), metadata=metadata)))
        answers.append(await refused(stub.CreateJob(pb.CreateJobRequest(job="a"), metadata=metadata)))

        assert set(answers) == {UNAUTHENTICATED}
        assert len((await stub.ListJobs(pb.ListJobsRequest(), metadata=shows(BOB))).jobs) == 1

    with_service(FakeSolver(), scenario, GUARDED)


def test_a_job_of_somebody_else_is_not_there_and_stays_untouched() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(ALICE))
        await stub.SubmitBatch(submission("a", 0), metadata=shows(ALICE))
        await stub.GetPlan(plan_request("a", 0), metadata=shows(ALICE))

        for name, call in calls_about(stub, "a").items():
            assert await refused(call(metadata=shows(BOB))) == (
                grpc.StatusCode.NOT_FOUND,
                "there is no job 'a'",
            ), name

        assert not (await stub.ListJobs(pb.ListJobsRequest(), metadata=shows(BOB))).jobs
        (job,) = (await stub.ListJobs(pb.ListJobsRequest(), metadata=shows(ALICE))).jobs
        assert (job.generation, job.submitted_step_count, job.planned_step_count) == (1, 1, 1)

    with_service(FakeSolver(), scenario, GUARDED)


def test_two_owners_may_use_one_name_and_never_meet() -> None:
    async def scenario(stub: Any) -> None:
        for token, step_count in ((ALICE, 1), (BOB, 2)):
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(token))
            for step in range(step_count):
                await stub.SubmitBatch(submission("a", step, (5, 7 + step_count)), metadata=shows(token))
                await stub.GetPlan(plan_request("a", step), metadata=shows(token))

        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(ALICE))

        assert (await stub.GetJob(pb.GetJobRequest(job="a"), metadata=shows(ALICE))).job.generation == 2
        plans = (await stub.ListPlans(pb.ListPlansRequest(job="a"), metadata=shows(BOB))).plans
        assert [plan.token_count for plan in plans] == [14, 14]
        await stub.DeleteJob(pb.DeleteJobRequest(job="a"), metadata=shows(ALICE))
        assert (await stub.GetJob(pb.GetJobRequest(job="a"), metadata=shows(BOB))).job.generation == 1

    with_service(FakeSolver(), scenario, GUARDED)


def test_a_new_generation_of_one_owner_leaves_the_waiting_callers_and_solves_of_another_alone() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        for token in (ALICE, BOB):
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(token))
        await stub.SubmitBatch(submission("a", 0), metadata=shows(BOB))
        waiting = asyncio.ensure_future(stub.GetPlan(plan_request("a", 0), metadata=shows(BOB)))
        await until(lambda: solver.solved_steps == [0])

        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(ALICE))
        solver.let_go()

        assert (await waiting).plan.generation == 1
        assert not solver.cancelled_steps

    with_service(solver, scenario, GUARDED)


def test_the_limit_of_jobs_holds_for_each_owner_and_names_the_option() -> None:
    async def scenario(stub: Any) -> None:
        def create(token: str, job: str) -> Any:
            return stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()), metadata=shows(token))

        for job in ("a", "b"):
            await create(ALICE, job)

        code, sentence = await refused(create(ALICE, "c"))

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sentence.startswith("2 jobs are kept, at most 2 may be (--max-jobs of the planner)")
        await create(BOB, "c")
        assert (await create(ALICE, "b")).job.generation == 2
        await stub.DeleteJob(pb.DeleteJobRequest(job="a"), metadata=shows(ALICE))
        await create(ALICE, "c")

    with_service(FakeSolver(), scenario, dataclasses.replace(GUARDED, max_jobs=2))


def test_too_many_waiting_callers_are_sent_away_with_a_pause_and_those_who_wait_get_their_plan() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        waiting = [asyncio.ensure_future(stub.GetPlan(plan_request("a", 0))) for _ in range(3)]
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

        (refusal,) = done
        error = refusal.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "2 callers wait for plans, at most 2 may (--max-waiters of the planner)"
        trailer: Any = error.trailing_metadata()
        assert dict(trailer)["grpc-retry-pushback-ms"] == "1000"
        solver.let_go()
        assert [(await call).plan.step for call in rest] == [0, 0]
        assert (await stub.GetPlan(plan_request("a", 0))).plan.step == 0

    with_service(solver, scenario, dataclasses.replace(CONFIG, max_waiters=2))


def test_an_owner_who_fills_their_part_of_the_queue_is_put_off_with_a_pause_and_another_owner_is_planned() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        async def submit(token: str, job: str) -> None:
            await stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()), metadata=shows(token))
            await stub.SubmitBatch(submission(job, 0), metadata=shows(token))

        for job in ("a", "b", "c"):
            await submit(ALICE, job)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await submit(ALICE, "d")
        await submit(BOB, "a")
        position = (await stub.SubmitBatch(submission("a", 0), metadata=shows(BOB))).queue_position
        solver.let_go()

        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (caught.value.details() or "").startswith("3 batches of the jobs of 'alice' are unsolved, at most 3 may")
        trailer: Any = caught.value.trailing_metadata()
        assert dict(trailer)["grpc-retry-pushback-ms"] == "1000"
        assert position == 3  # two of alice's are being solved, the third has its turn first
        assert (await stub.GetPlan(plan_request("a", 0), metadata=shows(BOB))).plan.job == "a"

    with_service(solver, scenario, dataclasses.replace(GUARDED, max_batches_per_owner=3))


def test_an_owner_who_waits_with_many_callers_leaves_the_other_half_of_the_places_to_others() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        for token in (ALICE, BOB):
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(token))
            await stub.SubmitBatch(submission("a", 0), metadata=shows(token))

        def wait(token: str) -> Any:
            return asyncio.ensure_future(stub.GetPlan(plan_request("a", 0), metadata=shows(token)))

        done, rest = await asyncio.wait([wait(ALICE) for _ in range(3)], return_when=asyncio.FIRST_COMPLETED)
        others = [wait(BOB) for _ in range(2)]
        error = done.pop().exception()
        solver.let_go()

        assert isinstance(error, grpc.aio.AioRpcError)
        assert (
            error.details()
            == "2 callers wait for plans of 'alice', at most 2 may, half of --max-waiters of the planner"
        )
        assert [(await call).plan.step for call in (*rest, *others)] == [0] * 4

    with_service(solver, scenario, dataclasses.replace(GUARDED, max_waiters=4))


def test_health_needs_no_token_and_reflection_does() -> None:
    async def run() -> None:
        server = await start_server(FakeSolver(), GUARDED)
        async with grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            response = await health.Check(health_pb2.HealthCheckRequest())
            assert response.status == health_pb2.HealthCheckResponse.SERVING
            for method in ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no/such"):
                open_call: Any = channel.stream_stream
                answers = open_call(method)(iter((b"",)))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await answers.read()
                assert (caught.value.code(), caught.value.details()) == UNAUTHENTICATED
        await server.stop(0.0)

    asyncio.run(run())


def test_tokens_that_are_replaced_on_disk_hold_at_once_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", f"alice {ALICE}\n".encode())
    listing = pb.ListJobsRequest()

    async def scenario(stub: Any) -> None:
        await stub.ListJobs(listing, metadata=shows(ALICE))
        path.write_text("alice\n")
        await stub.ListJobs(listing, metadata=shows(ALICE))
        path.write_text(f"bob {BOB}\n")
        await stub.ListJobs(listing, metadata=shows(BOB))
        assert await refused(stub.ListJobs(listing, metadata=shows(ALICE))) == UNAUTHENTICATED

    with_service(FakeSolver(), scenario, dataclasses.replace(CONFIG, tokens_file=path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "where: holds no token, nobody could use the planner"),
        ("alice", "where, line 1: expected a name"),
        (f"\nal/ice {ALICE}", "where, line 2: expected a name"),
        (f"alice {ALICE} more", "where, line 1: expected a name"),
        ("alice secret", "where, line 1: the token has 6 characters, it must have 20 to 1024; `openssl rand -hex 32`"),
        (f"alice {ALICE}ü", "where, line 1: a token is one word of printable ASCII characters"),
        (f"alice {ALICE}\nbob {ALICE}", "where, line 2: bob has the same token as alice"),
    ],
)
def test_a_list_of_tokens_that_is_no_good_is_refused_by_line_and_shows_no_token(text: str, sentence: str) -> None:
    with pytest.raises(SecurityError) as caught:
        parse_tokens(text.encode(), "where")

    assert str(caught.value).startswith(sentence)
    assert "secret" not in str(caught.value)
    assert ALICE not in str(caught.value)


def test_a_name_may_have_two_tokens_while_one_replaces_the_other() -> None:
    tokens = parse_tokens(f"alice {ALICE}\nalice {BOB}".encode(), "where")

    assert [tokens.find_principal(token) for token in (ALICE, BOB, ALICE + BOB)] == ["alice", "alice", None]
    assert ALICE not in repr(vars(tokens))


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o600])
def test_a_file_of_tokens_that_everybody_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_secret(tmp_path / "tokens", TOKENS.encode())
    path.chmod(mode)
    config = dataclasses.replace(CONFIG, tokens_file=path)

    async def run() -> None:
        await (await start_server(FakeSolver(), config)).stop(0.0)

    if mode & 0o007:
        with pytest.raises(
            SecurityError, match=f"--tokens {path}: every user .* may read it or more: chmod 600 {path}"
        ):
            asyncio.run(run())
    else:
        asyncio.run(run())


def test_jobs_of_an_owner_are_theirs_after_a_restart_too(tmp_path: Path) -> None:
    config = dataclasses.replace(GUARDED, store=os.fspath(tmp_path / "planner.sqlite"))

    async def create(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), metadata=shows(ALICE))
        await stub.SubmitBatch(submission("a", 0), metadata=shows(ALICE))

    async def look(stub: Any) -> None:
        assert not (await stub.ListJobs(pb.ListJobsRequest(), metadata=shows(BOB))).jobs
        assert (await stub.GetPlan(plan_request("a", 0), metadata=shows(ALICE))).plan.job == "a"

    with_service(FakeSolver(is_held=True), create, config)
    with_service(FakeSolver(), look, config)
