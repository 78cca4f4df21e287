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
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem, describe_shortage


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
    chunks = pipeline.order.chunks
    layer_s = sum(costs.recompute_s(chunk, 0, 1) for chunk in chunks) / len(chunks)
    return layer_s * sum(pipeline.recompute.layer_counts)


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
    classes = sorted({len(chain) for chain in chains})
    _require_memory(chains, classes, costs)
    delta_s = warmup_cooldown_s(chains, costs)
    least_s = [0.0]  # least_s[i]: cost of the first i classes (paper: dp)
    last_group: list[tuple[int, ScheduledPipeline]] = []  # per class: where its group begins, and the group
    for end in range(1, len(classes) + 1):
        best: tuple[float, int, ScheduledPipeline] | None = None
        for begin in range(end):
            # Recompute costs at least nothing: what is dearer without it needs no solver.
            if best is not None and least_s[begin] + delta_s >= best[0]:
                continue
            group = set(classes[begin:end])
            pipeline = schedule_pipeline([chain for chain in chains if len(chain) in group], costs, limits)
            if pipeline is None:
                continue
            cost_s = least_s[begin] + delta_s + recompute_cost_s(pipeline, costs)
            if best is None or cost_s < best[0]:
                best = cost_s, begin, pipeline
        assert best is not None, "every class fits in a pipeline of its own"
        least_s.append(best[0])
        last_group.append(best[1:])
    pipelines, end = [], len(classes)
    while end > 0:
        end, pipeline = last_group[end - 1]
        pipelines.append(pipeline)
    return pipelines


def schedule_pipeline(chains: Sequence[ChunkChain], costs: CostModel, limits: IlpLimits) -> ScheduledPipeline | None:
    """Order the chunks of one group and choose their recompute; None when it does not fit in memory."""
    order = order_pipeline(chains, costs.profile.cluster.pp_size)
    recompute = solve_recompute(build_recompute_problem(order, costs), limits)
    return None if recompute is None else ScheduledPipeline(order, recompute)


def _require_memory(chains: Sequence[ChunkChain], classes: Sequence[int], costs: CostModel) -> None:
    """Refuse chains that do not fit even alone with full recompute, before any solver runs."""
    profile = costs.profile
    for chunk_count in classes:
        order = order_pipeline([chain for chain in chains if len(chain) == chunk_count], profile.cluster.pp_size)
        problem = build_recompute_problem(order, costs)
        if problem.find_shortage() is not None:
            raise describe_shortage(problem, profile)
