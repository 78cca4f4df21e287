"""Eq. 9: what recomputed layers still hold."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


@pytest.mark.parametrize(("keeps_kv", "kept_width"), [(False, 8), (True, 8 + 2 * 4)])
def test_a_recomputed_layer_holds_its_input_and_the_keys_and_values_others_need(
    keeps_kv: bool, kept_width: int
) -> None:
    """``M_ckpt = e (D + 2 D_kv) l_ckpt / d_s sum(s)``, the key/value term for split chunks only.

    Keys and values cannot be released, as subsequent slices need them. Reference: III-A4, Eq. 9 (the text decides).
    With all 4 layers of the stage recomputed, nothing else is left but the gradients of keys and values.
    """
    costs = CostModel(round_profile())

    held = costs.activation_bytes(6, 0, keeps_kv=keeps_kv, recompute_layer_count=4)

    kv_gradients = 2 * 2 * 8 * 4 / 4 * 6 if keeps_kv else 0
    assert held == pytest.approx(2 * kept_width * 4 / 2 * 6 + kv_gradients)
