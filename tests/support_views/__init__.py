"""Steps of a job as they are looked at: a small plan, its replay, and ranks that measured what they are told."""

import dataclasses

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.simulate import Timeline, simulate
from infinipipe_planner.measured import MeasuredRank, MeasuredSpan, on_one_clock
from infinipipe_planner.report_page.view import JobView, StepView
from support_contract import two_stage_plan


def rank_of(
    timeline: Timeline, stage_index: int, rank: int, *, slowdown: float = 1.0, wait_s: float = 0.0
) -> MeasuredRank:
    """A rank that ran its stage as planned, everything slower by a factor; times since its own first action."""
    planned = timeline.stages[stage_index].spans
    first_s = planned[0].start_s
    spans = tuple(
        MeasuredSpan(s.kind, s.chunk_id, (s.start_s - first_s) * slowdown, (s.end_s - first_s) * slowdown)
        for s in planned
    )
    return MeasuredRank(
        rank=rank,
        stage_index=stage_index,
        step_s=spans[-1].end_s,
        busy_s=sum(span.end_s - span.start_s for span in spans),
        plan_wait_s=wait_s,
        peak_bytes=2e3,
        loss=2.5,
        spans=spans,
    )


def step_view(step: int = 0, *, slowdown: float | None = 1.0, wait_s: float = 0.0) -> StepView:
    """A step of the two-stage plan, run by four ranks; not measured when ``slowdown`` is None."""
    profile, _, plan = two_stage_plan()
    planned = simulate(plan.pipelines, profile)
    ranks: tuple[MeasuredRank, ...] = ()
    if slowdown is not None:
        ranks = tuple(rank_of(planned, rank // 2, rank, slowdown=slowdown, wait_s=wait_s) for rank in range(4))
    return StepView(dataclasses.replace(plan, step=step), planned, on_one_clock(ranks, planned))


def job_view(*steps: StepView, failures: tuple[tuple[int, str], ...] = (), name: str = "train") -> JobView:
    """A job of these steps."""
    profile, _, _ = two_stage_plan()
    return JobView(name, 1, profile, 4096, steps, failures)


def two_stage(step: int = 0) -> tuple[ExecutionPlan, Timeline]:
    """The two-stage plan and its replay."""
    view = step_view(step, slowdown=None)
    return view.plan, view.planned
