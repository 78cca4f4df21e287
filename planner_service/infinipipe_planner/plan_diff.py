"""What differs between two plans, figure by figure. Pure; ``cli.diff`` reads and prints."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from infinipipe_contract.plan import ChunkKind, ExecutionPlan, Slice, chunk_kinds, slices_by_sequence
from infinipipe_contract.text import format_bytes, recompute_layer_total
from infinipipe_planner.planned_lengths import planned_lengths

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both plans; numbers in the unit that the name ends with (seconds, bytes, ratio).

    Attributes:
        name: What it is, the key in JSON.
        first: Value in the first plan; None where that plan has no such thing.
        second: Value in the second plan; None where that plan has no such thing.
    """

    name: str
    first: Value | None
    second: Value | None

    @property
    def differs(self) -> bool:
        """Whether the plans differ in it."""
        return self.first != self.second


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans beside each other.

    Attributes:
        figures: Everything that is compared, equal or not.
        runs_the_same: Whether both run the same actions on the same slices.
        moved_sequence_count: Sequences that are sliced in another way or stand in another chunk, pipeline or replica;
            None when the plans are for different batches.
    """

    figures: tuple[Figure, ...]
    runs_the_same: bool
    moved_sequence_count: int | None


def diff_plans(first: ExecutionPlan, second: ExecutionPlan) -> PlanDiff:
    """Compare two plans; who they are for (job, generation, step) is not compared."""
    figures_of_first, figures_of_second = dict(_figures(first)), dict(_figures(second))
    names = [*figures_of_first, *(name for name in figures_of_second if name not in figures_of_first)]
    moved = None
    if planned_lengths(first) == planned_lengths(second):
        places, others = _places(first), _places(second)
        moved = sum(place != others[sequence_index] for sequence_index, place in places.items())
    return PlanDiff(
        figures=tuple(Figure(name, figures_of_first.get(name), figures_of_second.get(name)) for name in names),
        runs_the_same=first.pipelines == second.pipelines,
        moved_sequence_count=moved,
    )


def format_value(name: str, value: Value | None) -> str:
    """Write a figure for people."""
    if value is None or isinstance(value, str):
        return value or "-"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_ratio"):
        return f"{value:.1%}"
    return f"{value:.3f} s" if name.endswith("_s") else str(value)


def format_change(figure: Figure) -> str:
    """Write how far the second plan is from the first: percent of a size, points of a ratio, a count; else nothing."""
    first, second = figure.first, figure.second
    if isinstance(first, str) or isinstance(second, str) or first is None or second is None or first == second:
        return ""
    if figure.name.endswith("_ratio"):
        return f"{(second - first) * 100:+.1f} points"
    if isinstance(first, int):
        return f"{second - first:+d}"
    return f"{second / first - 1:+.1%}" if first else ""


def diff_to_tree(diff: PlanDiff) -> dict[str, object]:
    """Write a diff as a tree for ``json.dumps``."""
    return dataclasses.asdict(diff)


def _figures(plan: ExecutionPlan) -> Iterator[tuple[str, Value]]:
    lengths = planned_lengths(plan)
    kinds = Counter(kind for pipeline in plan.pipelines for kind in chunk_kinds(pipeline.chunks))
    yield "policy", plan.policy
    yield "sequences", len(lengths)
    yield "tokens", sum(lengths)
    yield "chunks", plan.chunk_count
    for kind in ChunkKind:
        yield f"{kind.value}_chunks", kinds[kind]
    yield "slices_of_longest", plan.report.slice_count
    yield "pipelines", len(plan.pipelines)
    if plan.replica_count > 1:
        yield "replicas", plan.replica_count
    yield "recomputed_layers", recompute_layer_total(plan)
    yield "recompute_solved", plan.report.outcome.value
    yield "predicted_s", plan.estimate.makespan_s
    yield "bubble_ratio", plan.estimate.bubble_ratio
    yield "recompute_ratio", plan.estimate.recompute_ratio
    for replica_index, stage_index, stage in plan.placed_estimates():
        prefix = f"replica_{replica_index}_" if plan.replica_count > 1 else ""
        yield f"{prefix}stage_{stage_index}_peak_bytes", stage.peak_bytes
    yield "solve_s", plan.report.solve_s


def _places(plan: ExecutionPlan) -> dict[int, list[tuple[int, int, int, Slice]]]:
    """Where every sequence is: replica, pipeline, chunk and slice in token order."""
    return {
        sequence_index: [(pipeline.replica_index, pipeline_index, chunk_index, piece) for piece, chunk_index in pieces]
        for pipeline_index, pipeline in enumerate(plan.pipelines)
        for sequence_index, pieces in slices_by_sequence(pipeline.chunks).items()
    }
