"""The executor's side of the planning service: hand in lengths, take plans, report what was measured.

Here is what is asked; how a call reaches a planner that may be away is in ``planner_calls``. Synchronous; once
``create_job`` is over, threads of the process may call side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.access import ClientAccess
from infinipipe_contract.codec import ACTION_KIND_TO_PROTO, plan_from_proto, profile_to_proto
from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.validate import check_identity
from infinipipe_executor.errors import BatchRefusedError, JobRefusedError, PlanFailedError, PlannerRefusedError
from infinipipe_executor.planner_access import NO_ACCESS
from infinipipe_executor.planner_calls import PlannerCalls

DEFAULT_CALL_TIMEOUT_S = 30.0
"""Seconds for calls that the planner answers at once; long enough for one that is just starting."""


@dataclass(frozen=True, slots=True)
class ActionMeasurement:
    """When one action ran, in seconds since the rank's first action of the step."""

    pipeline_index: int
    kind: ActionKind
    chunk_index: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank measured in one step.

    Attributes:
        rank: Global rank.
        stage_index: Its stage, from 0.
        step_s: Seconds from the first action's start to the last one's end.
        busy_s: Seconds spent computing, recompute included.
        plan_wait_s: Seconds the rank waited for its plan before the step.
        peak_bytes: Largest memory in use during the step; 0 where it is not measured.
        loss: Loss of the step as the whole job sees it; None when not known.
        actions: One entry an action, in the order they ran; none for a replica without a chunk.
        replica_index: Its replica of the pipeline, from 0.
        first_start_s: Seconds from the common start of the step to the first action; None when not known.
    """

    rank: int
    stage_index: int
    step_s: float
    busy_s: float
    plan_wait_s: float
    peak_bytes: int = 0
    loss: float | None = None
    actions: Sequence[ActionMeasurement] = ()
    replica_index: int = 0
    first_start_s: float | None = None


class PlanClient:
    """A job's connection to its planner.

    One rank calls ``create_job``; the others are told the generation and call ``join_job``.

    Args:
        address: HOST:PORT of the planner.
        call_timeout_s: Seconds for calls that the planner answers at once.
        access: Certificates and token; by default none.

    Raises:
        ConfigError: If the address is not of that form.
    """

    def __init__(
        self, address: str, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S, access: ClientAccess = NO_ACCESS
    ) -> None:
        self.address = address
        self._call_timeout_s = call_timeout_s
        self._calls = PlannerCalls(address, access)
        self._job = ""
        self._generation = 0

    def create_job(
        self,
        name: str,
        profile: Profile,
        *,
        context_tokens: int,
        policy: str = "",
        max_slice_count: int = 0,
    ) -> int:
        """Create the job, or open its next generation when it exists; later calls are about it.

        Args:
            name: Letters, digits, ".", "_" and "-", 1 to 128 of them.
            profile: Cost model of the job.
            context_tokens: Longest sequence that will be submitted.
            policy: Policy by name; empty means the planner's default.
            max_slice_count: Largest slice number K to try; 0 means the planner's default.

        Returns:
            The generation, from 1.

        Raises:
            PlannerUnavailableError: If no planner answers in time.
            JobRefusedError: If the planner refuses the job.
        """
        options = pb.PlanOptions(policy=policy, max_slice_count=max_slice_count)
        spec = pb.JobSpec(profile=profile_to_proto(profile), options=options, context_tokens=context_tokens)
        request = pb.CreateJobRequest(job=name, spec=spec)
        response: pb.CreateJobResponse = self._calls.call("CreateJob", request, self._call_timeout_s, JobRefusedError)
        self.join_job(name, response.job.generation)
        return response.job.generation

    def join_job(self, name: str, generation: int) -> None:
        """Make later calls be about a generation that another rank opened."""
        self._job, self._generation = name, generation

    def submit_batch(
        self,
        step: int,
        lengths_tokens: Sequence[int],
        target_token_count: int | None = None,
        *,
        timeout_s: float | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> int:
        """Hand in the lengths of a step's batch; the plan is made in the background.

        Args:
            step: Training step, from 0.
            lengths_tokens: Length of every sequence of the batch.
            target_token_count: Tokens with a target; None means every token but the last of each sequence.
            timeout_s: Seconds to wait for a planner that is away or busy; None means as long as for every call.
            on_wait: Called every few seconds of waiting with the seconds waited so far.

        Returns:
            Batches that the planner solves before this one.

        Raises:
            PlannerUnavailableError: If no planner answers in time.
            BatchRefusedError: If the planner refuses the batch.
        """
        request = pb.SubmitBatchRequest(
            job=self._job,
            generation=self._generation,
            step=step,
            lengths_tokens=lengths_tokens,
            target_token_count=target_token_count,
        )
        timeout_s = self._call_timeout_s if timeout_s is None else timeout_s
        response: pb.SubmitBatchResponse = self._calls.call(
            "SubmitBatch", request, timeout_s, BatchRefusedError, on_wait
        )
        return response.queue_position

    def fetch_plan(
        self, step: int, *, timeout_s: float, on_wait: Callable[[float], None] | None = None
    ) -> ExecutionPlan:
        """Wait for the plan of a step; works before the step is submitted, too.

        Args:
            step: Training step, from 0.
            timeout_s: Seconds to wait at most.
            on_wait: Called every few seconds of waiting with the seconds waited so far.

        Returns:
            The plan, which is of this job, generation and step; ``validate`` tells whether it fits the batch.

        Raises:
            PlannerUnavailableError: If there is no plan in time.
            PlanFailedError: If the planner says that there will be none.
            InvalidPlanError: If the answer is not a plan, or one of another job, generation or step.
        """
        request = pb.GetPlanRequest(job=self._job, generation=self._generation, step=step)
        response: pb.GetPlanResponse = self._calls.call("GetPlan", request, timeout_s, PlanFailedError, on_wait)
        plan = plan_from_proto(response.plan)
        check_identity(plan, self._job, self._generation, step)
        return plan

    def solve_plan(
        self,
        lengths_tokens: Sequence[int],
        profile: Profile,
        *,
        policy: str = "",
        max_slice_count: int = 0,
        timeout_s: float,
        on_wait: Callable[[float], None] | None = None,
    ) -> ExecutionPlan:
        """Have lengths planned that are no step of the job, and wait for the plan.

        Args:
            lengths_tokens: Length of every sequence.
            profile: Cost model to plan with.
            policy: Policy by name; empty means the planner's default.
            max_slice_count: Largest slice number K to try; 0 means the planner's default.
            timeout_s: Seconds to wait at most.
            on_wait: Called every few seconds of waiting with the seconds waited so far.

        Returns:
            The plan, which is of no job; it counts every token but the last of each sequence as a target.

        Raises:
            PlannerUnavailableError: If there is no plan in time.
            PlanFailedError: If the planner cannot plan the lengths.
            InvalidPlanError: If the answer is not a plan, or one of a job.
        """
        request = pb.SolvePlanRequest(
            profile=profile_to_proto(profile),
            options=pb.PlanOptions(policy=policy, max_slice_count=max_slice_count),
            lengths_tokens=lengths_tokens,
        )
        response: pb.SolvePlanResponse = self._calls.call("SolvePlan", request, timeout_s, PlanFailedError, on_wait)
        plan = plan_from_proto(response.plan)
        check_identity(plan, "", 0, 0)
        return plan

    def report_step(self, step: int, report: RankReport, *, on_wait: Callable[[float], None] | None = None) -> None:
        """Hand in what this rank measured.

        Args:
            step: Training step, from 0.
            report: What was measured.
            on_wait: Called every few seconds of waiting with the seconds waited so far.

        Raises:
            PlannerUnavailableError: If no planner answers in time.
            PlannerRefusedError: If the planner refuses the report.
        """
        message = pb.RankReport(
            rank=report.rank,
            stage_index=report.stage_index,
            replica_index=report.replica_index,
            step_s=report.step_s,
            busy_s=report.busy_s,
            plan_wait_s=report.plan_wait_s,
            peak_bytes=report.peak_bytes,
            loss=report.loss,
            first_start_s=report.first_start_s,
            actions=[
                pb.ActionMeasurement(
                    pipeline_index=action.pipeline_index,
                    kind=ACTION_KIND_TO_PROTO[action.kind],
                    chunk_index=action.chunk_index,
                    start_s=action.start_s,
                    end_s=action.end_s,
                )
                for action in report.actions
            ],
        )
        request = pb.ReportStepRequest(job=self._job, generation=self._generation, step=step, report=message)
        self._calls.call("ReportStep", request, self._call_timeout_s, PlannerRefusedError, on_wait)

    def close(self) -> None:
        """Close the connection of this process; the next call opens another one."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
