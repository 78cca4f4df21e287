"""Eq. 18: the optimum under the memory limit."""

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.simulate import simulate
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, order_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile


def test_peak_memory_stays_within_the_capacity_and_no_stage_recomputes_more_layers_than_it_has() -> None:
    """Minimise the recompute subject to ``M_ms + sum of M_act <= G`` for all (p, t) and ``c <= L / d_p``.

    Reference: III-C3, Eq. 18.
    """
    profile = round_profile(device_memory_bytes=3500)
    order = order_pipeline([split_chain(0, 6, 5, 4), *(batched_chain((index, 6)) for index in range(1, 5))], 2)

    solution = solve_recompute(build_recompute_problem(order, CostModel(profile)), IlpLimits(0.0, 1000))

    assert solution is not None
    assert sum(solution.layer_counts) > 0
    assert all(0 <= count <= 4 for count in solution.layer_counts)
    timeline = simulate([build_pipeline(order, solution.layer_counts)], profile)
    assert all(stage.peak_bytes <= 3500 for stage in timeline.stages)
