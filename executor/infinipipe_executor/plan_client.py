"""The executor's side of the planning service: hand in lengths, take plans, report what was measured.

A planner that is away, or whose queue is full, is asked again with growing pauses until the time of the call is up. TLS
that fails before the planner ever answered is a mistake of the set-up and ends the call at once; later, certificates
may just be replaced, and it is waited for, too.

Synchronous; once ``create_job`` is over, threads of the process may call side by side. The channel is opened by the
first call and belongs to the process that opened it, so a data-loading worker that is forked later never touches it.

    ExecutorError
      PlannerUnavailableError       nobody answers at the address, or not in time
      PlannerRefusedError           the planner answered no; its sentence is the message
        TokenRefusedError           to the token, or to having none
        JobRefusedError             to the job
        BatchRefusedError           to the lengths of a batch
        PlanFailedError             it could not plan the batch
"""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.access import ClientAccess
from infinipipe_contract.codec import ACTION_KIND_TO_PROTO, plan_from_proto, profile_to_proto
from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.validate import check_identity
from infinipipe_executor.call_waiting import Waiting, wait_for_result
from infinipipe_executor.errors import ConfigError, ExecutorError
from infinipipe_executor.planner_access import NO_ACCESS, explain_handshake, open_channel

logger = logging.getLogger(__name__)

DEFAULT_CALL_TIMEOUT_S = 30.0
"""Seconds for calls that the planner answers at once; long enough for one that is just starting."""

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
"""Pauses between attempts to reach the planner double from the first to the largest."""

RETRY_PAUSE_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of a refusal that another attempt can cure: milliseconds to wait first (gRPC's A6)."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.max_send_message_length", 16 * 2**20),
    # A planner whose machine is gone says nothing; only pings find out during a long wait.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # An answer to a ping that stays out counts after this; gRPC's own default, a minute, wins over the line above.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own pause grows to two minutes, so that a planner that is back would not be noticed.
    ("grpc.min_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
    ("grpc.initial_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(MAX_PAUSE_S * 1000)),
    # The planner is a neighbour: a proxy for the way out of the cluster would not know it.
    ("grpc.enable_http_proxy", 0),
)


class PlannerUnavailableError(ExecutorError):
    """No planner answers at the address in time; the message names address and seconds."""


class PlannerRefusedError(ExecutorError):
    """The planner refused a request; the message is its sentence."""


class TokenRefusedError(PlannerRefusedError):
    """The planner does not know the token, or wants one; the message names the setting."""


class JobRefusedError(PlannerRefusedError):
    """The planner refused the job: its name, profile, options or context."""


class BatchRefusedError(PlannerRefusedError):
    """The planner refused a batch: its lengths, or its place in the job."""


class PlanFailedError(PlannerRefusedError):
    """The planner has no plan for the step and will not have one."""


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
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"planner address {address!r} is not HOST:PORT, for example 127.0.0.1:50051")
        self.address = address
        self._call_timeout_s = call_timeout_s
        self._access = access
        self._was_answered = False
        self._channels: dict[int, grpc.Channel] = {}
        self._job = ""
        self._generation = 0
        self._has_warned_of_name = False

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
        response: pb.CreateJobResponse = self._call("CreateJob", request, self._call_timeout_s, JobRefusedError)
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
        response: pb.SubmitBatchResponse = self._call("SubmitBatch", request, timeout_s, BatchRefusedError, on_wait)
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
        response: pb.GetPlanResponse = self._call("GetPlan", request, timeout_s, PlanFailedError, on_wait)
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
        response: pb.SolvePlanResponse = self._call("SolvePlan", request, timeout_s, PlanFailedError, on_wait)
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
        self._call("ReportStep", request, self._call_timeout_s, PlannerRefusedError, on_wait)

    def close(self) -> None:
        """Close this process's channel; the next call opens another one."""
        channel = self._channels.pop(os.getpid(), None)
        if channel is not None:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self) -> grpc.Channel:
        """Return this process's channel; a parent's one stays referenced, for even closing it would use its threads."""
        pid = os.getpid()
        if pid not in self._channels:
            self._channels[pid] = open_channel(self.address, self._access, CHANNEL_OPTIONS)
        return self._channels[pid]

    def _call(
        self,
        method: str,
        request: object,
        timeout_s: float,
        refusal: type[PlannerRefusedError],
        on_wait: Callable[[float], None] | None = None,
    ) -> Any:  # noqa: ANN401  # each caller names its response
        """Call until an answer comes or the time is up; a planner that is away or busy is worth another attempt."""
        waiting = Waiting(timeout_s, on_wait)
        pause_s = FIRST_PAUSE_S
        trouble = ""
        while True:
            stub = planner_service_pb2_grpc.PlannerServiceStub(self._channel())  # type: ignore[no-untyped-call]  # generated
            left_s = waiting.left_s
            try:
                call = getattr(stub, method).future(request, timeout=left_s, metadata=self._access.metadata)
                response = wait_for_result(call, waiting)
                self._was_answered = True
                return response
            except grpc.RpcError as error:
                code, sentence = error.code(), error.details() or ""
                asked_pause_s = _asked_pause_s(error)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise TokenRefusedError(self._access.explain_refusal(self.address))
            if code is grpc.StatusCode.UNAVAILABLE:
                self._warn_of_unknown_name(sentence, timeout_s)
                reason = explain_handshake(self.address, self._access, waiting.left_s)
                if reason and not self._was_answered:
                    raise PlannerUnavailableError(reason)
                trouble = reason or (
                    f"no planner at {self.address} after {timeout_s:g} s: "
                    f"is `infinipipe serve` running there? ({sentence})"
                )
            elif asked_pause_s is not None:
                trouble = f"the planner at {self.address} is too busy for {method} after {timeout_s:g} s: {sentence}"
            elif code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise refusal(sentence or f"the planner at {self.address} answered {method} with {code.name}")
            elif not trouble or left_s > MAX_PAUSE_S:
                raise PlannerUnavailableError(
                    f"the planner at {self.address} did not answer {method} within {timeout_s:g} s"
                )
            if waiting.left_s <= 0:
                raise PlannerUnavailableError(trouble)
            waiting.sleep(max(pause_s, asked_pause_s or 0.0))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _warn_of_unknown_name(self, sentence: str, timeout_s: float) -> None:
        """Say at once, and once, that the name of the host leads nowhere: most often it is misspelt."""
        if self._has_warned_of_name or "resol" not in sentence.lower():
            return
        host, _, port = self.address.rpartition(":")
        try:
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            self._has_warned_of_name = True
            logger.warning(
                "the name of the planner's host, %s, is not known here (%s); trying on for up to %g s (--planner)",
                host,
                error.strerror,
                timeout_s,
            )


def _asked_pause_s(error: Any) -> float | None:  # noqa: ANN401  # grpc's errors are calls, which its types do not say
    """Return the seconds that the planner asks to wait before another attempt; None when it asks for none."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    pauses_ms = [int(value) for key, value in error.trailing_metadata() or () if key == RETRY_PAUSE_KEY]
    return pauses_ms[0] / 1000 if pauses_ms else None
