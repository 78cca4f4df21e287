"""Solves that nobody waits for any longer end in the service, whatever made them unwanted, and others are planned."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import profile_to_proto
from infinipipe_planner.options import MAX_NODE_LIMIT
from support_planner.pool_work import ENDLESS, SLOW_PROFILE
from support_service import job_spec, plan_request, submission
from support_service.process import ServiceProcess, ray_directories, survivors

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(240)]

CALL_TIMEOUT_S = 60.0
ENDLESS_OPTIONS = pb.PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=MAX_NODE_LIMIT, max_slice_count=2)


WITHOUT_RAY = ("--workers", "0")


@pytest.fixture(scope="module", params=[(), WITHOUT_RAY], ids=["with Ray", "without Ray"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    process = ServiceProcess(*request.param)
    try:
        yield process.wait_ready()
    finally:
        process.close()


@pytest.fixture
def stub(service: ServiceProcess) -> Iterator[Any]:
    with grpc.insecure_channel(service.address) as channel:
        yield planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def busy_solvers(service: ServiceProcess) -> dict[int, str]:
    """Find the processes that solve: Ray shows it in their titles, without Ray it is the one child that computes."""
    return {
        pid: command
        for pid, command in service.descendants().items()
        if "CandidateSolver.solve" in command or ("multiprocessing.spawn" in command and is_computing(pid))
    }


def is_computing(pid: int) -> bool:
    """Tell whether it takes processor time for longer than the end of a solve does."""
    before = processor_ticks(pid)
    time.sleep(0.2)
    return processor_ticks(pid) - before >= 3


def processor_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])  # its own and the system's for it, 10 ms each


def wait_busy(service: ServiceProcess, solver_count: int = 1) -> dict[int, str]:
    """Wait until so many solvers are busy; return them."""
    deadline_s = time.monotonic() + 30
    while len(busy := busy_solvers(service)) != solver_count:
        assert time.monotonic() < deadline_s, f"{len(busy)} solvers are busy, not {solver_count}"
        time.sleep(0.01)
    return busy


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
    busy = wait_busy(service)

    stub.DeleteJob(pb.DeleteJobRequest(job="deleted"), timeout=CALL_TIMEOUT_S)

    assert not survivors(busy, 1)
    assert plan_small_batch(stub, "after-delete") == 0


def test_a_new_generation_kills_the_solver_of_the_old_one(stub: Any, service: ServiceProcess) -> None:
    submit_endless(stub, "restarted")
    busy = wait_busy(service)

    stub.CreateJob(pb.CreateJobRequest(job="restarted", spec=job_spec()), timeout=CALL_TIMEOUT_S)

    assert not survivors(busy, 1)
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
    busy = wait_busy(service)

    if how == "cancelled":
        call.cancel()
    elif how == "past its deadline":
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    else:
        channel.close()

    assert not survivors(busy, 1)
    channel.close()
    assert plan_small_batch(stub, f"after-{how.partition(' ')[0]}") == 0


def test_more_endless_batches_than_solvers_block_nobody_once_they_are_deleted(
    stub: Any, service: ServiceProcess, request: pytest.FixtureRequest
) -> None:
    jobs = [f"endless-{number}" for number in range(4)]
    for job in jobs:
        submit_endless(stub, job)
    wait_busy(service, 1 if "without Ray" in request.node.callspec.id else 2)

    for job in jobs:
        stub.DeleteJob(pb.DeleteJobRequest(job=job), timeout=CALL_TIMEOUT_S)

    assert plan_small_batch(stub, "after-all") == 0


def test_a_killed_planner_without_ray_takes_the_process_that_solves_with_it() -> None:
    service = ServiceProcess(*WITHOUT_RAY)
    try:
        with grpc.insecure_channel(service.wait_ready().address) as channel:
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            submit_endless(stub, "orphaned")
            busy = wait_busy(service)

            service.kill()

        assert not survivors(busy, 1)
    finally:
        service.close()


@pytest.mark.parametrize("service", [()], ids=["with Ray"], indirect=True)
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
