"""A solve that takes too long is stopped: whoever waits gets the fallback plan with the reason, others are planned."""

from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import plan_from_proto, profile_to_proto
from infinipipe_contract.plan import SolveOutcome
from infinipipe_contract.validate import validate
from infinipipe_planner.options import MAX_NODE_LIMIT
from support_planner.pool_work import ENDLESS, SLOW_PROFILE
from support_service import job_spec, plan_request, submission
from support_service.process import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(240)]

CALL_TIMEOUT_S = 60.0
HOSTILE = pb.PlanOptions(policy="paper", gap_ratio=1e-9, node_limit=MAX_NODE_LIMIT, max_slice_count=2)


@pytest.mark.parametrize("workers", ["0", "1"], ids=["without Ray", "with Ray"])
def test_hostile_options_hold_the_solvers_for_so_long_and_every_waiter_is_told_the_limit(workers: str) -> None:
    service = ServiceProcess("--workers", workers, "--max-solve-s", "4")
    try:
        with grpc.insecure_channel(service.wait_ready().address) as channel:
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            spec = job_spec(profile=profile_to_proto(SLOW_PROFILE), options=HOSTILE, context_tokens=max(ENDLESS))
            stub.CreateJob(pb.CreateJobRequest(job="hostile", spec=spec), timeout=CALL_TIMEOUT_S)
            stub.SubmitBatch(submission("hostile", 0, ENDLESS), timeout=CALL_TIMEOUT_S)
            waiting = [stub.GetPlan.future(plan_request("hostile", 0), timeout=CALL_TIMEOUT_S) for _ in range(3)]
            stub.CreateJob(pb.CreateJobRequest(job="modest", spec=job_spec()), timeout=CALL_TIMEOUT_S)
            stub.SubmitBatch(submission("modest", 0), timeout=CALL_TIMEOUT_S)

            modest = plan_from_proto(stub.GetPlan(plan_request("modest", 0), timeout=CALL_TIMEOUT_S).plan)
            plans = [plan_from_proto(call.result().plan) for call in waiting]
    finally:
        log = service.close()

    assert (modest.report.outcome, modest.report.fallback_reason) == (SolveOutcome.OPTIMAL, "")
    assert len({plan.digest for plan in plans}) == 1
    validate(plans[0], ENDLESS, SLOW_PROFILE)
    for plan in plans:
        assert plan.report.outcome is SolveOutcome.FALLBACK
        assert plan.report.fallback_reason.startswith("the solve was stopped after 4 s (--max-solve-s of the planner)")
    assert "job hostile, generation 1, step 0: has the fallback plan" in log
