"""What a report shows, as plain data, and where the time of a step went."""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import Timeline
from infinipipe_contract.text import name_stage
from infinipipe_planner.measured import MeasuredRank, measured_s

MAX_DRAWN_SPANS = 40_000
"""Actions drawn on one page, all steps together: about 10 MB of page."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step with a plan.

    Attributes:
        plan: The plan.
        planned: Its replay.
        ranks: What ranks measured, on one clock; empty before the step ran.
    """

    plan: ExecutionPlan
    planned: Timeline
    ranks: tuple[MeasuredRank, ...]

    @property
    def step(self) -> int:
        """Training step."""
        return self.plan.step

    @property
    def measured_s(self) -> float:
        """Longest step of any rank in seconds; 0 before the step ran."""
        return measured_s(self.ranks)

    @property
    def end_s(self) -> float:
        """End of the last action, planned or measured."""
        return max([self.planned.makespan_s, *(span.end_s for rank in self.ranks for span in rank.spans)])

    @property
    def span_count(self) -> int:
        """Actions that a drawing of the step holds."""
        return sum(len(stage.spans) for stage in self.planned.stages) + sum(len(rank.spans) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job.

    Attributes:
        name: Its name.
        generation: Newest generation.
        profile: What it plans with.
        context_tokens: Longest sequence that it may submit.
        steps: Its steps with a plan, in order.
        failures: Steps without one, and why.
    """

    name: str
    generation: int
    profile: Profile
    context_tokens: int
    steps: tuple[StepView, ...]
    failures: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the seconds of one step went: the parts add up to the step, plan wait included.

    Attributes:
        ideal_s: The work alone, spread evenly.
        fixed_s: What passes cost beside the work: their fixed cost, latencies, parameters gathered for too little work.
        recompute_s: Recompute, mean over the stages of all replicas.
        bubble_s: Idle time, mean over the stages of all replicas.
        drift_s: Measured minus predicted; negative when the step was faster than predicted.
        plan_wait_s: Longest wait of a rank for its plan.
    """

    ideal_s: float
    fixed_s: float
    recompute_s: float
    bubble_s: float
    drift_s: float
    plan_wait_s: float

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.ideal_s + self.lost_s

    @property
    def lost_s(self) -> float:
        """What a perfect step would not have taken."""
        return self.fixed_s + self.recompute_s + self.bubble_s + self.drift_s + self.plan_wait_s


def split_time(step: StepView) -> TimeSplit:
    """Tell where the time of a step went."""
    estimate = step.plan.estimate
    stage_count = len(estimate.stages)
    busy_s = sum(stage.busy_s for stage in estimate.stages) / stage_count
    recompute_s = sum(stage.recompute_s for stage in estimate.stages) / stage_count
    return TimeSplit(
        ideal_s=estimate.ideal_s,
        fixed_s=busy_s - recompute_s - estimate.ideal_s,
        recompute_s=recompute_s,
        bubble_s=estimate.makespan_s - busy_s,
        drift_s=step.measured_s - estimate.makespan_s if step.ranks else 0.0,
        plan_wait_s=max((rank.plan_wait_s for rank in step.ranks), default=0.0),
    )


def main_cause(step: StepView) -> str:
    """Say in words what took most of the time that a perfect step would not have taken."""
    split = split_time(step)
    causes = {
        "waiting for the plan": split.plan_wait_s,
        _slower_stage(step): split.drift_s,
        _bubble(step): split.bubble_s,
        f"recompute: {_recomputing_chunks(step)} of {step.plan.chunk_count} chunks": split.recompute_s,
        "fixed costs of a pass, many small chunks": split.fixed_s,
    }
    return max(causes, key=lambda cause: causes[cause])


def worst_first(steps: Sequence[StepView]) -> list[StepView]:
    """Order steps by the time they lost, the worst first."""
    return sorted(steps, key=lambda step: (-split_time(step).lost_s, step.step))


def drawn_steps(steps: Sequence[StepView]) -> list[StepView]:
    """Choose the steps to draw: the worst and the newest in turn, as many as a page can hold, in order.

    At least one step is drawn, however large.
    """
    chosen: dict[int, StepView] = {}
    span_count = 0
    for pair in zip(worst_first(steps), reversed(steps), strict=True):
        for step in pair:
            if step.step in chosen:
                continue
            span_count += step.span_count
            if chosen and span_count > MAX_DRAWN_SPANS:
                return [chosen[index] for index in sorted(chosen)]
            chosen[step.step] = step
    return [chosen[index] for index in sorted(chosen)]


def _slower_stage(step: StepView) -> str:
    """Name the stage whose ranks computed longest over the prediction."""
    plan = step.plan
    planned_s = {(replica, stage): estimate.busy_s for replica, stage, estimate in plan.placed_estimates()}
    late_s: dict[tuple[int, int], float] = {}
    for rank in step.ranks:
        place = (rank.replica_index, rank.stage_index)
        over_s = rank.busy_s - planned_s[place]
        late_s[place] = max(over_s, late_s.get(place, over_s))
    replica_index, stage_index = place = max(late_s, key=lambda place: late_s[place], default=(0, 0))
    if late_s.get(place, 0.0) <= 0:
        return "slower than predicted though no rank computed longer: messages or waiting"
    name = name_stage(stage_index, replica_index, plan.replica_count)
    return f"slower than predicted: {name} computed {late_s[place]:.2f} s longer"


def _bubble(step: StepView) -> str:
    plan = step.plan
    by_replica = [
        " + ".join(str(len(one.chunks)) for one in plan.pipelines if one.replica_index == replica_index) or "0"
        for replica_index in range(plan.replica_count)
    ]
    where = "" if plan.replica_count == 1 else f" of {plan.replica_count} replicas"
    return f"bubble: {' | '.join(by_replica)} chunks to fill {plan.stage_count} stages{where}"


def _recomputing_chunks(step: StepView) -> int:
    return sum(
        len({a.chunk_index for stage in pipeline.stages for a in stage if a.recompute_layer_count})
        for pipeline in step.plan.pipelines
    )
