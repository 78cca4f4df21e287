"""Uniform recompute: the same number of layers for every chunk on every stage, as static configurations have it."""

from collections.abc import Sequence

from infinipipe_contract.plan import Pipeline
from infinipipe_contract.profile import Profile
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder, build_pipeline
from infinipipe_planner.scheduling.recompute_problem import RecomputeProblem, describe_shortage


def least_uniform_recompute(problem: RecomputeProblem, profile: Profile) -> int:
    """Find the fewest layers that make every window fit when all chunks recompute as many.

    Raises:
        InfeasibleBatchError: If recomputing all layers of a stage is not enough.
    """
    for layer_count in range(problem.layer_limit + 1):
        recompute = (layer_count,) * problem.variable_count
        if all(constraint.holds(recompute) for constraint in problem.constraints):
            return layer_count
    raise describe_shortage(problem, profile)


def build_uniform_pipeline(order: PipelineOrder, layer_count: int, stage_layers: Sequence[int]) -> Pipeline:
    """Join an order with a number of layers to a pipeline; a stage that has fewer recomputes all."""
    return build_pipeline(order, (layer_count,) * (len(order.chunks) + len(order.stages) - 1), stage_layers)
