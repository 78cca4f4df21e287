"""Solves that nobody waits for any longer end in the service, whatever made them unwanted, and others are planned."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import profile_to_proto
from support_planner.pool_work import ENDLESS, SLOW_PROFILE
from support_service import job_spec, plan_request, submission
from support_service.process import ServiceProcess, ray_directories

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CALL_TIMEOUT_S = 60.0
ENDLESS_OPTIONS = pb.PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=10**9, max_slice_count=2)


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    process = ServiceProcess()
    try:
        yield process.wait_ready()
    finally:
        process.close()


@pytest.fixture
def stub(service: ServiceProcess) -> Iterator[Any]:
    with grpc.insecure_channel(service.address) as channel:
        yield planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def busy_solvers(service: ServiceProcess) -> set[int]:
    return {pid for pid, command in service.descendants().items() if "CandidateSolver.solve" in command}


def wait_until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"it took more than {timeout_s:g} s"
        time.sleep(0.01)


def submit_endless(stub: Any, job: str) -> None:
    """Start a job and a batch of it whose solve does not come to an end."""
    spec = job_spec(profile=profile_to_proto(SLOW_PROFILE), options=ENDLESS_OPTIONS, context_tokens=max(ENDLESS))
    generation = stub.CreateJob(pb.CreateJobRequest(job=job, spec=spec), timeout=CALL_TIMEOUT_S).job.generation
    stub.SubmitBatch(submission(job, 0, ENDLESS, generation=generation), timeout=CALL_TIMEOUT_S)


def plan_small_batch(stub: Any, job: str) -> int:
    stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()), timeout=CALL_TIMEOUT_S)
    stub.SubmitBatch(submission(job, 0), timeout=CALL_TIMEOUT_S)
    return int(stub.GetPlan(plan_request(job, 0), timeout=20.0).plan.step)


def test_deleting_a_job_kills_the_solver_of_its_batch(stub: Any, service: ServiceProcess) -> None:
    submit_endless(stub, "deleted")
    wait_until(lambda: len(busy_solvers(service)) == 1, 30)

    stub.DeleteJob(pb.DeleteJobRequest(job="deleted"), timeout=CALL_TIMEOUT_S)

    wait_until(lambda: not busy_solvers(service), 1)
    assert plan_small_batch(stub, "after-delete") == 0


def test_a_new_generation_kills_the_solver_of_the_old_one(stub: Any, service: ServiceProcess) -> None:
    submit_endless(stub, "restarted")
    wait_until(lambda: len(busy_solvers(service)) == 1, 30)

    stub.CreateJob(pb.CreateJobRequest(job="restarted", spec=job_spec()), timeout=CALL_TIMEOUT_S)

    wait_until(lambda: not busy_solvers(service), 1)
    assert plan_small_batch(stub, "after-restart") == 0


@pytest.mark.parametrize("how", ["cancelled", "past its deadline", "gone"])
def test_a_caller_who_no_longer_waits_for_a_what_if_frees_its_solver(
    stub: Any, service: ServiceProcess, how: str
) -> None:
    request = pb.SolvePlanRequest(
        profile=profile_to_proto(SLOW_PROFILE), options=ENDLESS_OPTIONS, lengths_tokens=ENDLESS
    )
    channel = grpc.insecure_channel(service.address)
    own: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
    call = own.SolvePlan.future(request, timeout=6.0 if how == "past its deadline" else CALL_TIMEOUT_S)
    wait_until(lambda: len(busy_solvers(service)) == 1, 30)

    if how == "cancelled":
        call.cancel()
    elif how == "past its deadline":
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        channel.close()

    wait_until(lambda: not busy_solvers(service), 1)
    channel.close()
    assert plan_small_batch(stub, f"after-{how.partition(' ')[0]}") == 0


def test_more_endless_batches_than_solvers_block_nobody_once_they_are_deleted(
    stub: Any, service: ServiceProcess
) -> None:
    jobs = [f"endless-{number}" for number in range(4)]
    for job in jobs:
        submit_endless(stub, job)
    wait_until(lambda: len(busy_solvers(service)) == 2, 30)

    for job in jobs:
        stub.DeleteJob(pb.DeleteJobRequest(job=job), timeout=CALL_TIMEOUT_S)

    assert plan_small_batch(stub, "after-all") == 0


def test_a_killed_planner_leaves_a_folder_that_the_next_one_sweeps_and_a_living_ones_stays(
    service: ServiceProcess,
) -> None:
    living = ray_directories(service.descendants())
    killed, following = ServiceProcess(), None
    try:
        orphans = ray_directories(killed.wait_ready().descendants())
        killed.kill()
        assert all(path.exists() for path in orphans)

        following = ServiceProcess().wait_ready()

        assert orphans
        assert not [path for path in orphans if path.exists()]
        assert all(path.exists() for path in living)
    finally:
        log = following.close() if following is not None else ""
        killed.close()
    assert all(str(path) in log for path in orphans)
