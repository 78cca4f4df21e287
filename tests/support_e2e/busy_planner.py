"""A planner on a socket that does not take the lengths of one step for a while, as one whose queue is full."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import plan_to_proto
from infinipipe_contract.profile import Profile
from infinipipe_executor.planner_calls import RETRY_PAUSE_KEY
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan


class BusyPlanner(planner_service_pb2_grpc.PlannerServiceServicer):
    """Plans at once what it takes.

    Args:
        profile: Cost model of the job.
        busy_step: Step whose lengths it refuses.
        busy_s: Seconds, from the first attempt on, for which it does.
    """

    def __init__(self, profile: Profile, busy_step: int, busy_s: float) -> None:
        self._profile = profile
        self._busy_step = busy_step
        self._busy_s = busy_s
        self._busy_until_s: float | None = None
        self._batches: dict[int, pb.SubmitBatchRequest] = {}
        self._has_taken = threading.Condition()

    def CreateJob(self, request: pb.CreateJobRequest, context: grpc.ServicerContext) -> pb.CreateJobResponse:  # noqa: ARG002, N802
        return pb.CreateJobResponse(job=pb.Job(name=request.job, generation=1))

    def SubmitBatch(self, request: pb.SubmitBatchRequest, context: grpc.ServicerContext) -> pb.SubmitBatchResponse:  # noqa: N802
        if request.step == self._busy_step:
            if self._busy_until_s is None:
                self._busy_until_s = time.monotonic() + self._busy_s
            if time.monotonic() < self._busy_until_s:
                context.set_trailing_metadata(((RETRY_PAUSE_KEY, "100"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        with self._has_taken:
            self._batches[request.step] = request
            self._has_taken.notify_all()
        return pb.SubmitBatchResponse()

    def GetPlan(self, request: pb.GetPlanRequest, context: grpc.ServicerContext) -> pb.GetPlanResponse:  # noqa: N802
        with self._has_taken:
            self._has_taken.wait_for(lambda: request.step in self._batches, timeout=context.time_remaining())
        batch = self._batches[request.step]
        plan = solve_plan(
            batch.lengths_tokens,
            self._profile,
            PlanOptions(),
            job=batch.job,
            generation=batch.generation,
            step=batch.step,
            target_token_count=batch.target_token_count,
        )
        return pb.GetPlanResponse(plan=plan_to_proto(plan))

    def ReportStep(self, request: pb.ReportStepRequest, context: grpc.ServicerContext) -> pb.ReportStepResponse:  # noqa: ARG002, N802
        return pb.ReportStepResponse()


@contextmanager
def busy_planner(profile: Profile, *, busy_step: int, busy_s: float) -> Iterator[str]:
    """Run such a planner within this process and give its address."""
    server = grpc.server(ThreadPoolExecutor(8))
    planner_service_pb2_grpc.add_PlannerServiceServicer_to_server(  # type: ignore[no-untyped-call]  # generated
        BusyPlanner(profile, busy_step, busy_s), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(10)
