"""Grouping of sequences into pipelines (paper, III-C2): dynamic programming over the chunks of a sequence.

Short sequences grouped with a long one inherit its window and with it more recompute; a pipeline of their own costs
another warm-up and cool-down. Eq. 14 weighs the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder, order_pipeline
from infinipipe_planner.scheduling.recompute import RecomputeSolution, solve_recompute
from infinipipe_planner.scheduling.recompute_floor import least_cost
from infinipipe_planner.scheduling.recompute_problem import (
    IlpLimits,
    RecomputeProblem,
    build_recompute_problem,
    describe_shortage,
)


@dataclass(frozen=True, slots=True)
class ScheduledPipeline:
    """One group of sequences with its order and its recompute."""

    order: PipelineOrder
    recompute: RecomputeSolution


def warmup_cooldown_s(chains: Sequence[ChunkChain], costs: CostModel) -> float:
    """Overhead of one more pipeline (paper: delta of Eq. 13): ``(pp_size - 1) * avg(T_tot)``, forward and backward."""
    chunks = [chunk for chain in chains for chunk in chain]
    total_s = sum(costs.forward_s(chunk, 0) + costs.backward_s(chunk, 0, 0) for chunk in chunks)
    return (costs.profile.cluster.pp_size - 1) * total_s / len(chunks)


def recompute_cost_s(pipeline: ScheduledPipeline, costs: CostModel) -> float:
    """Recompute cost of a pipeline (Eq. 17): forward time of a mean layer times the sum of the variables."""
    return _mean_layer_s(pipeline.order, costs) * sum(pipeline.recompute.layer_counts)


def group_chains(chains: Sequence[ChunkChain], costs: CostModel, limits: IlpLimits) -> list[ScheduledPipeline]:
    """Group sequences into pipelines at the least sum of overhead and recompute (Eqs. 12 to 14).

    Args:
        chains: Chains of the batch; sequences of equally many chunks share a pipeline.
        costs: Cost model.
        limits: Limits of every recompute problem.

    Returns:
        Pipelines, longest sequences first.

    Raises:
        InfeasibleBatchError: If sequences of equally many chunks do not even fit in a pipeline of their own.
    """
    groups = _Groups(chains, costs, limits)
    groups.require_memory()
    delta_s = warmup_cooldown_s(chains, costs)
    least_s = [0.0]  # least_s[i]: cost of the first i classes (paper: dp)
    last_group: list[tuple[int, ScheduledPipeline]] = []  # per class: where its group begins, and the group
    for end in range(1, groups.class_count + 1):
        best: tuple[float, int, ScheduledPipeline] | None = None
        for begin in groups.promising_begins(end):
            # What is dearer with the least recompute it can have needs no solver; of equals the larger group counts.
            floor_s = least_s[begin] + delta_s
            if best is not None and (floor_s, begin) >= best[:2]:
                continue
            floor_s += groups.floor_s(begin, end)
            if best is not None and (floor_s, begin) >= best[:2]:
                continue
            pipeline = groups.schedule(begin, end)
            if pipeline is None:
                continue
            cost_s = least_s[begin] + delta_s + recompute_cost_s(pipeline, costs)
            if best is None or (cost_s, begin) < best[:2]:
                best = cost_s, begin, pipeline
        assert best is not None, "every class fits in a pipeline of its own"
        least_s.append(best[0])
        last_group.append(best[1:])
    pipelines, end = [], groups.class_count
    while end > 0:
        end, pipeline = last_group[end - 1]
        pipelines.append(pipeline)
    return pipelines


class _Groups:
    """Groups of neighbouring classes; a class holds the sequences of equally many chunks, the shortest come first."""

    def __init__(self, chains: Sequence[ChunkChain], costs: CostModel, limits: IlpLimits) -> None:
        self._costs = costs
        self._limits = limits
        chunk_counts = sorted({len(chain) for chain in chains})
        self._classes = [[chain for chain in chains if len(chain) == count] for count in chunk_counts]
        self._problems: dict[tuple[int, int], tuple[PipelineOrder, RecomputeProblem]] = {}

    @property
    def class_count(self) -> int:
        return len(self._classes)

    def require_memory(self) -> None:
        """Refuse classes that do not fit even alone with full recompute, before any solver runs."""
        for begin in range(self.class_count):
            _, problem = self._problem(begin, begin + 1)
            if problem.find_shortage() is not None:
                raise describe_shortage(problem, self._costs.profile)

    def promising_begins(self, end: int) -> list[int]:
        """Order the groups that end with a class: all in one if that costs no recompute, else the smallest first."""
        if not self._problem(0, end)[1].constraints:
            return list(range(end))
        return list(reversed(range(end)))

    def floor_s(self, begin: int, end: int) -> float:
        """Bound the recompute cost of a group from below."""
        order, problem = self._problem(begin, end)
        return _mean_layer_s(order, self._costs) * least_cost(problem)

    def schedule(self, begin: int, end: int) -> ScheduledPipeline | None:
        """Choose a group's recompute; None when it does not fit in memory."""
        order, problem = self._problem(begin, end)
        recompute = solve_recompute(problem, self._limits)
        return None if recompute is None else ScheduledPipeline(order, recompute)

    def _problem(self, begin: int, end: int) -> tuple[PipelineOrder, RecomputeProblem]:
        if (begin, end) not in self._problems:
            chains = [chain for one in self._classes[begin:end] for chain in one]
            order = order_pipeline(chains, self._costs.profile.cluster.pp_size)
            self._problems[begin, end] = order, build_recompute_problem(order, self._costs)
        return self._problems[begin, end]


def _mean_layer_s(order: PipelineOrder, costs: CostModel) -> float:
    """Mean forward time of one layer (Eq. 17)."""
    return sum(costs.recompute_s(chunk, 0, 1) for chunk in order.chunks) / len(order.chunks)
