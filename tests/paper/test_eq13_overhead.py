"""Eq. 13: warm-up and cool-down of a pipeline."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.scheduling.grouping import warmup_cooldown_s
from support_planner.chunks import batched_chain
from support_planner.profiles import round_profile


def test_a_pipeline_costs_the_mean_chunk_once_for_every_further_stage() -> None:
    """Delta is a constant approximated as ``(d_p - 1) avg(T_tot)``, forward and backward. Reference: III-C1, Eq. 13."""
    costs = CostModel(round_profile(pp_size=4))
    chains = [batched_chain((0, 3)), batched_chain((1, 5))]

    delta_s = warmup_cooldown_s(chains, costs)

    times = [costs.forward_s(chain[0], 0) + costs.backward_s(chain[0], 0, 0) for chain in chains]
    assert delta_s == pytest.approx(3 * sum(times) / 2)


def test_one_stage_has_no_warm_up() -> None:
    """With d_p = 1 the overhead vanishes. Reference: III-C1, Eq. 13."""
    assert warmup_cooldown_s([batched_chain((0, 3))], CostModel(round_profile(pp_size=1))) == 0.0
