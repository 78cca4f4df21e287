"""Eq. 17: cost of a pipeline's recompute."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.scheduling.grouping import ScheduledPipeline, recompute_cost_s
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute import RecomputeSolution
from support_planner.chunks import batched_chain
from support_planner.profiles import round_profile


def test_recompute_costs_the_mean_forward_time_of_a_layer_for_every_layer_of_every_diagonal() -> None:
    """``T_ckpt(P) = F sum(C)``, F the estimated forward time of a model layer. Reference: III-C3, Eq. 17."""
    costs = CostModel(round_profile())
    order = order_pipeline([batched_chain((0, 3)), batched_chain((1, 5))], 2)
    solution = RecomputeSolution((0, 4, 3), SolveOutcome.OPTIMAL, 0.0)

    cost_s = recompute_cost_s(ScheduledPipeline(order, solution), costs)

    layer_s = sum(costs.forward_s(chunk, 0) / 4 for chunk in order.chunks) / 2
    assert cost_s == pytest.approx(layer_s * 7)
