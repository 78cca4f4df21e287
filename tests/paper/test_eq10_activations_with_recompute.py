"""Eq. 10: activations of a chunk with recompute."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


@pytest.mark.parametrize("keeps_kv", [False, True])
@pytest.mark.parametrize("stage_index", [0, 1])
@pytest.mark.parametrize("layer_count", [0, 1, 3, 4])
def test_activations_shrink_by_the_recomputed_share_of_the_layers(
    layer_count: int, stage_index: int, keeps_kv: bool
) -> None:
    """``M_act = M_dkv + M_ckpt + ((L - l d_p) / L M_token / N + M_logits / d_s [p = d_p]) sum(s)``.

    Recompute has no impact on M_dkv. Reference: III-A4, Eq. 10.
    """
    tokens = 6
    dkv = 2 * 2 * 8 * 4 / 4 * tokens if keeps_kv else 0
    checkpoint = 2 * (8 + (2 * 4 if keeps_kv else 0)) * layer_count / 2 * tokens
    activations = ((8 - layer_count * 2) / 8 * 400 / 4 + (20 / 2 if stage_index == 1 else 0)) * tokens

    held = CostModel(round_profile()).activation_bytes(
        tokens, stage_index, keeps_kv=keeps_kv, recompute_layer_count=layer_count
    )

    assert held == pytest.approx(dkv + checkpoint + activations)
