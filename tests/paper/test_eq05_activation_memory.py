"""Eq. 5: activations of a chunk."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


def test_activations_are_proportional_to_tokens_and_the_last_stage_adds_logits() -> None:
    """``Act = (M_token / N + M_logits / d_s [p = d_p]) sum(s)``. Reference: III-A3, Eq. 5."""
    costs = CostModel(round_profile())

    assert costs.full_activation_bytes(6, 0, keeps_kv=False) == pytest.approx(400 / 4 * 6)
    assert costs.full_activation_bytes(6, 1, keeps_kv=False) == pytest.approx((400 / 4 + 20 / 2) * 6)


def test_gradients_of_keys_and_values_count_for_chunks_that_later_slices_attend_to() -> None:
    """``M_dkv = 2 e L D_kv / N sum(s)`` for split chunks: they wait for the gradients of every later slice.

    Reference: III-A3, Eq. 5; the text decides, the printed factor (1 - I_k) inverts the indicator.
    """
    costs = CostModel(round_profile())

    extra = costs.full_activation_bytes(6, 0, keeps_kv=True) - costs.full_activation_bytes(6, 0, keeps_kv=False)

    assert extra == pytest.approx(2 * 2 * 8 * 4 / 4 * 6)
