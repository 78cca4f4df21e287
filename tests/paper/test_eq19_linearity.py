"""Eq. 19: memory is linear in the recomputed layers."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


@pytest.mark.parametrize("keeps_kv", [False, True])
def test_every_recomputed_layer_saves_the_same_bytes(keeps_kv: bool) -> None:
    """``M_act(p, S_k) = I_p[k] - F[k] C_{p,k}``, with the coefficients of Alg. 2, lines 2, 3 and 10.

    Reference: III-C3, Eq. 19.
    """
    costs = CostModel(round_profile())
    tokens, kv = 6, int(keeps_kv)
    full = (400 / 4 + kv * 2 * 2 * 8 * 4 / 4 + 20 / 2) * tokens
    saved = (400 / (8 * 2) - 2 * (8 + 2 * kv * 4) / 2) * tokens

    for count in range(5):
        held = costs.activation_bytes(tokens, 1, keeps_kv=keeps_kv, recompute_layer_count=count)
        assert held == pytest.approx(full - saved * count)
