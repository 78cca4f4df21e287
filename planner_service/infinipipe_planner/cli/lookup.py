"""What commands that look at a job ask the planner: the job, its steps, a step's plan and measurements."""

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import ACTION_KIND_FROM_PROTO, plan_from_proto, profile_from_proto
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ChunkId, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.cli.client import call_planner
from infinipipe_planner.cli.output import fail
from infinipipe_planner.measured import MeasuredRank, MeasuredSpan


class StepRecord(NamedTuple):
    """The plan of a step and what the ranks measured, each since its own first action."""

    plan: ExecutionPlan
    ranks: tuple[MeasuredRank, ...]


def fetch_job(planner: str, job: str) -> pb.Job:
    """Return a job; leave when there is none of that name."""
    response: pb.GetJobResponse = call_planner(planner, "GetJob", pb.GetJobRequest(job=job))
    return response.job


def job_profile(job: pb.Job) -> Profile:
    """Return the cost model that a job plans with."""
    return profile_from_proto(job.spec.profile)


def fetch_summaries(planner: str, job: str) -> Sequence[pb.PlanSummary]:
    """Return one line a step of a job."""
    response: pb.ListPlansResponse = call_planner(planner, "ListPlans", pb.ListPlansRequest(job=job))
    return response.plans


def fetch_step(planner: str, job: pb.Job, step: int) -> StepRecord:
    """Return a step that is planned; a report that does not fit its plan is left out, aloud."""
    request = pb.GetPlanRequest(job=job.name, generation=job.generation, step=step)
    response: pb.GetPlanResponse = call_planner(planner, "GetPlan", request)
    reports = list(response.reports)
    while len(reports) < response.report_count:
        request.after_rank = reports[-1].rank if reports else -1
        further: pb.GetPlanResponse = call_planner(planner, "GetPlan", request)
        if not further.reports:  # those of a step that was forgotten meanwhile
            break
        reports += further.reports
    try:
        plan = plan_from_proto(response.plan)
    except InvalidPlanError as error:
        fail(f"step {step}: {error} (from the planner at {planner})")
    chunk_ids = {
        ChunkId(pipeline_index, chunk_index)
        for pipeline_index, pipeline in enumerate(plan.pipelines)
        for chunk_index in range(len(pipeline.chunks))
    }
    ranks = []
    for report in reports:
        has_stage = report.stage_index < plan.stage_count and report.replica_index < plan.replica_count
        if has_stage and all(_fits(action, chunk_ids) for action in report.actions):
            ranks.append(_read_rank(report))
        else:
            typer.echo(f"step {step}: the report of rank {report.rank} does not fit the plan and is left out", err=True)
    return StepRecord(plan, tuple(ranks))


def require_planned(job: str, step: int, summaries: Sequence[pb.PlanSummary]) -> None:
    """Leave when a step has no plan: GetPlan waits for a step to come, somebody who looks wants to know instead."""
    if not summaries:
        fail(f"job {job} has no steps")
    for summary in summaries:
        if summary.step == step:
            if summary.state == pb.PLAN_STATE_FAILED:
                fail(f"step {step} of job {job} has no plan: {summary.failure}")
            if summary.state == pb.PLAN_STATE_PLANNING:
                fail(f"step {step} of job {job} is still being planned")
            return
    fail(f"job {job} has no step {step}; it has {len(summaries)}, from {summaries[0].step} to {summaries[-1].step}")


def _read_rank(report: pb.RankReport) -> MeasuredRank:
    return MeasuredRank(
        rank=report.rank,
        stage_index=report.stage_index,
        replica_index=report.replica_index,
        step_s=report.step_s,
        busy_s=report.busy_s,
        plan_wait_s=report.plan_wait_s,
        peak_bytes=report.peak_bytes,
        loss=report.loss if report.HasField("loss") else None,
        first_start_s=report.first_start_s if report.HasField("first_start_s") else None,
        spans=tuple(
            MeasuredSpan(ACTION_KIND_FROM_PROTO[action.kind], _chunk_id(action), action.start_s, action.end_s)
            for action in report.actions
        ),
    )


def _fits(action: pb.ActionMeasurement, chunk_ids: Set[ChunkId]) -> bool:
    """Whether an action is one of the plan and lasts from a time to a later one; the planner keeps what it is told."""
    times_s = (action.start_s, action.end_s)
    return (
        action.kind in ACTION_KIND_FROM_PROTO
        and _chunk_id(action) in chunk_ids
        and all(map(math.isfinite, times_s))
        and 0 <= action.start_s <= action.end_s
    )


def _chunk_id(action: pb.ActionMeasurement) -> ChunkId:
    return ChunkId(action.pipeline_index, action.chunk_index)
