"""Requests read and checked, stored things written as messages: the service's side of the contract's codec."""

import array
import hashlib
import math
import re
from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from infinipipe.planner.v1 import plan_pb2, planner_service_pb2, profile_pb2
from infinipipe_contract.codec import (
    ACTION_KIND_FROM_PROTO,
    OUTCOME_TO_PROTO,
    plan_to_proto,
    profile_from_proto,
    profile_to_proto,
)
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import MAX_REPLICAS, MAX_STAGES, Profile
from infinipipe_planner.errors import InvalidOptionsError
from infinipipe_planner.job_records import (
    Batch,
    FailedStep,
    JobSpec,
    PlanFigures,
    PlannedStep,
    StoredJob,
    StoredReport,
    StoredReports,
    StoredStep,
)
from infinipipe_planner.lengths import MAX_SEQUENCE_TOKENS
from infinipipe_planner.options import PlanOptions, check_options
from infinipipe_planner.status import InvalidRequestError

JOB_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_SHOWN_CHARACTERS = 40
DEFAULT_OPTIONS = PlanOptions()

MAX_RANKS = 1_048_576
MAX_REPORTED_ACTIONS = 131_072
MAX_REPORTED_FIGURE = 1e18
"""Seconds and bytes of a report beyond which no machine is meant."""


def read_job_name(name: str) -> str:
    """Check a job's name.

    Raises:
        InvalidRequestError: If it is empty, too long or holds another character.
    """
    if not JOB_NAME.fullmatch(name):
        shown = name if len(name) <= MAX_SHOWN_CHARACTERS else name[:MAX_SHOWN_CHARACTERS] + "..."
        raise InvalidRequestError(
            f'job name {shown!r} has {len(name)} characters, it must be 1 to 128 letters, digits, ".", "_" and "-"'
        )
    return name


def read_step(step: int) -> int:
    """Check a step number.

    Raises:
        InvalidRequestError: If it is negative.
    """
    if step < 0:
        raise InvalidRequestError(f"step is {step}, it must be at least 0")
    return step


def read_profile(has_profile: bool, message: profile_pb2.Profile) -> Profile:
    """Read a profile.

    Raises:
        InvalidRequestError: If there is none.
        InvalidProfileError: If it makes no sense.
    """
    if not has_profile:
        raise InvalidRequestError("profile is missing: the planner needs the cost model of the job")
    return profile_from_proto(message)


def read_options(message: planner_service_pb2.PlanOptions, max_solve_s: float) -> PlanOptions:
    """Read how to plan.

    Args:
        message: The options.
        max_solve_s: Seconds that solvers may work on one batch.

    Raises:
        InvalidOptionsError: If a value makes no sense, or the solve would be stopped in any case.
    """
    options = PlanOptions(
        policy=message.policy or DEFAULT_OPTIONS.policy,
        max_slice_count=message.max_slice_count,
        gap_ratio=message.gap_ratio,
        node_limit=message.node_limit,
        budget_s=message.budget_s,
    )
    check_options(options)
    if options.budget_s >= max_solve_s:
        raise InvalidOptionsError(
            f"budget_s is {options.budget_s:g}, it must be less than {max_solve_s:g}, "
            "after which the planner stops a solve (--max-solve-s)"
        )
    return options


def read_job_spec(message: planner_service_pb2.JobSpec, max_solve_s: float) -> JobSpec:
    """Read what a job trains with.

    Args:
        message: The specification.
        max_solve_s: Seconds that solvers may work on one batch.

    Raises:
        InvalidRequestError: If the profile or the context is missing.
        InvalidProfileError: If the profile makes no sense.
        InvalidOptionsError: If an option makes no sense.
    """
    if not 1 <= message.context_tokens <= MAX_SEQUENCE_TOKENS:
        raise InvalidRequestError(
            f"context_tokens is {message.context_tokens}, it must be at least 1 and at most {MAX_SEQUENCE_TOKENS}"
        )
    profile = read_profile(message.HasField("profile"), message.profile)
    return JobSpec(profile, read_options(message.options, max_solve_s), message.context_tokens)


def read_target_token_count(request: planner_service_pb2.SubmitBatchRequest, token_count: int) -> int | None:
    """Read the target count of a batch; None when it is absent.

    Raises:
        InvalidRequestError: If it is more than the batch has tokens, or negative.
    """
    if not request.HasField("target_token_count"):
        return None
    if not 0 <= request.target_token_count <= token_count:
        raise InvalidRequestError(
            f"target_token_count is {request.target_token_count}, it must be from 0 to the batch's {token_count} tokens"
        )
    return request.target_token_count


def describe_batch(lengths_tokens: Sequence[int], target_token_count: int | None) -> Batch:
    """Give a batch the digest that tells it from another one."""
    content = array.array("q", lengths_tokens).tobytes() + str(target_token_count).encode()
    return Batch(hashlib.sha256(content).hexdigest(), tuple(lengths_tokens), target_token_count)


def read_report(report: planner_service_pb2.RankReport) -> StoredReport:
    """Check and encode what a rank measured.

    Raises:
        InvalidRequestError: If a figure is negative, not finite or beyond its limit, or an action makes no sense.
    """
    for name, count, most in (
        ("rank", report.rank, MAX_RANKS - 1),
        ("stage_index", report.stage_index, MAX_STAGES - 1),
        ("replica_index", report.replica_index, MAX_REPLICAS - 1),
        ("actions", len(report.actions), MAX_REPORTED_ACTIONS),
    ):
        if not 0 <= count <= most:
            raise InvalidRequestError(f"report.{name} is {count}, it must be at least 0 and at most {most}")
    for name, figure in (
        ("step_s", report.step_s),
        ("busy_s", report.busy_s),
        ("plan_wait_s", report.plan_wait_s),
        ("peak_bytes", report.peak_bytes),
        ("first_start_s", report.first_start_s),
    ):
        if not 0 <= figure <= MAX_REPORTED_FIGURE:  # not a number is not in the range, either
            raise InvalidRequestError(
                f"report.{name} is {figure}, it must be a finite number of at least 0 and at most "
                f"{MAX_REPORTED_FIGURE:g}"
            )
    if not math.isfinite(report.loss):
        raise InvalidRequestError(f"report.loss is {report.loss}, it must be a finite number or absent")
    for index, action in enumerate(report.actions):
        _check_action(f"report.actions[{index}]", action)
    report.DiscardUnknownFields()  # no limit would hold for what they carry
    return StoredReport(report.step_s, report.SerializeToString())


def _check_action(path: str, action: planner_service_pb2.ActionMeasurement) -> None:
    if action.kind not in ACTION_KIND_FROM_PROTO:
        raise InvalidRequestError(f"{path}.kind is {action.kind}, it must be one of {sorted(ACTION_KIND_FROM_PROTO)}")
    if action.pipeline_index < 0 or action.chunk_index < 0:
        raise InvalidRequestError(
            f"{path} is about chunk {action.chunk_index} of pipeline {action.pipeline_index}, both must be at least 0"
        )
    if not 0 <= action.start_s <= action.end_s <= MAX_REPORTED_FIGURE:
        raise InvalidRequestError(
            f"{path} lasts from {action.start_s} s to {action.end_s} s, it must last from 0 or later to that or later, "
            f"at most {MAX_REPORTED_FIGURE:g}"
        )


def encode_plan(plan: ExecutionPlan) -> PlannedStep:
    """Encode a plan for the store, with the figures that lists show."""
    figures = PlanFigures(
        chunk_count=plan.chunk_count,
        pipeline_count=len(plan.pipelines),
        slice_count=plan.report.slice_count,
        makespan_s=plan.estimate.makespan_s,
        bubble_ratio=plan.estimate.bubble_ratio,
        solve_s=plan.report.solve_s,
        outcome=plan.report.outcome,
    )
    return PlannedStep(figures, plan_to_proto(plan).SerializeToString())


def write_job(job: StoredJob) -> planner_service_pb2.Job:
    """Write a job as a message."""
    created = Timestamp()
    created.FromNanoseconds(int(job.created_unix_s * 1e9))
    options = job.spec.options
    return planner_service_pb2.Job(
        name=job.id.name,
        spec=planner_service_pb2.JobSpec(
            profile=profile_to_proto(job.spec.profile),
            options=planner_service_pb2.PlanOptions(
                policy=options.policy,
                max_slice_count=options.max_slice_count,
                gap_ratio=options.gap_ratio,
                node_limit=options.node_limit,
                budget_s=options.budget_s,
            ),
            context_tokens=job.spec.context_tokens,
        ),
        generation=job.generation,
        create_time=created,
        submitted_step_count=job.submitted_step_count,
        planned_step_count=job.planned_step_count,
    )


def write_plan(encoded_plan: bytes | None, reports: StoredReports) -> planner_service_pb2.GetPlanResponse:
    """Write a plan, if there is to be one, and reports about it."""
    return planner_service_pb2.GetPlanResponse(
        plan=None if encoded_plan is None else plan_pb2.ExecutionPlan.FromString(encoded_plan),
        reports=map(planner_service_pb2.RankReport.FromString, reports.encoded_reports),
        report_count=reports.report_count,
    )


def write_summary(stored: StoredStep) -> planner_service_pb2.PlanSummary:
    """Write one line about a step."""
    summary = planner_service_pb2.PlanSummary(
        step=stored.step,
        state=planner_service_pb2.PLAN_STATE_PLANNING,
        sequence_count=stored.sequence_count,
        token_count=stored.token_count,
        measured_s=stored.measured_s,
    )
    result = stored.result
    if isinstance(result, FailedStep):
        summary.state = planner_service_pb2.PLAN_STATE_FAILED
        summary.failure = result.sentence
    elif isinstance(result, PlanFigures):
        summary.state = planner_service_pb2.PLAN_STATE_READY
        summary.chunk_count = result.chunk_count
        summary.pipeline_count = result.pipeline_count
        summary.slice_count = result.slice_count
        summary.makespan_s = result.makespan_s
        summary.bubble_ratio = result.bubble_ratio
        summary.solve_s = result.solve_s
        summary.outcome = OUTCOME_TO_PROTO[result.outcome]
    return summary
