"""Eq. 11: time of recompute."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.chunks import chunk
from support_planner.profiles import round_profile


@pytest.mark.parametrize("layer_count", [0, 1, 4])
def test_recompute_adds_its_share_of_a_forward_pass_to_the_backward_pass_only(layer_count: int) -> None:
    """Recompute only affects the backward pass, by the share of the stage's layers that run forward again.

    Reference: III-A4, Eq. 11. The printed divisor ``L d_s`` is read as the layers of a stage, ``L / d_p``.
    """
    costs = CostModel(round_profile())
    piece = chunk((0, 3, 2))

    extra = costs.backward_s(piece, 0, layer_count) - costs.backward_s(piece, 0, 0)

    assert extra == pytest.approx(layer_count / 4 * costs.forward_s(piece, 0))
