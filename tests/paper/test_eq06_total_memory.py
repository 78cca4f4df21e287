"""Eq. 6: memory of a stage."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.simulate import simulate
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, order_pipeline
from support_planner.chunks import batched_chain
from support_planner.profiles import round_profile


def test_memory_is_fixed_model_states_plus_the_activations_of_the_moment() -> None:
    """``M_tot(p, t) = M_ms(p) + M_act(p, t)``. Reference: III-A3, Eq. 6."""
    profile = round_profile()
    order = order_pipeline([batched_chain((0, 6))], 2)

    timeline = simulate([build_pipeline(order, (0, 0))], profile)

    held = CostModel(profile).full_activation_bytes(6, 0, keeps_kv=False)
    assert timeline.stages[0].memory_bytes == pytest.approx((1000 + held, 1000))
