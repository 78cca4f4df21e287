"""Two runs that share a planner: the second one's plan takes at most twice as long as alone, and health answers."""

import statistics
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import profile_to_proto
from infinipipe_planner.options import MAX_NODE_LIMIT
from support_planner.pool_work import ENDLESS, SLOW_PROFILE
from support_service import job_spec, plan_request, submission
from support_service.process import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(240)]

CALL_TIMEOUT_S = 60.0
SOLVE_S = 4.0
"""Every solve is stopped after these, by the clock: the load of the machine does not decide how long it takes."""

OPTIONS = pb.PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=MAX_NODE_LIMIT, max_slice_count=2)


def submit(stub: Any, job: str, step: int) -> int:
    """Hand in a batch; returns its place in the queue."""
    return int(stub.SubmitBatch(submission(job, step, ENDLESS), timeout=CALL_TIMEOUT_S).queue_position)


@pytest.mark.parametrize("workers", ["0", "2"], ids=["one solver without Ray", "two solvers"])
def test_the_second_of_two_clients_has_its_plan_within_twice_the_time_alone_and_health_answers(workers: str) -> None:
    service = ServiceProcess("--workers", workers, "--max-solve-s", str(SOLVE_S))
    try:
        with grpc.insecure_channel(service.wait_ready().address) as channel:
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            health: Any = health_pb2_grpc.HealthStub(channel)
            spec = job_spec(profile=profile_to_proto(SLOW_PROFILE), options=OPTIONS, context_tokens=max(ENDLESS))
            for job in ("first", "second"):
                stub.CreateJob(pb.CreateJobRequest(job=job, spec=spec), timeout=CALL_TIMEOUT_S)

            started_s = time.monotonic()
            submit(stub, "second", 0)
            stub.GetPlan(plan_request("second", 0), timeout=CALL_TIMEOUT_S)
            alone_s = time.monotonic() - started_s

            assert submit(stub, "first", 0) == 0
            started_s = time.monotonic()
            place = submit(stub, "second", 1)
            call = stub.GetPlan.future(plan_request("second", 1), timeout=CALL_TIMEOUT_S)
            answers_s = []
            while not call.done():
                asked_s = time.monotonic()
                health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
                answers_s.append(time.monotonic() - asked_s)
                time.sleep(0.05)
            call.result()
            beside_s = time.monotonic() - started_s
    finally:
        service.close()

    assert place == 1
    assert alone_s >= SOLVE_S
    assert beside_s <= 2 * alone_s + 1.0  # a second for what the machine does besides
    assert statistics.median(answers_s) < 0.2
