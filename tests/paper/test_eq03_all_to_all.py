"""Eq. 3: all-to-all of Ulysses-style sequence parallelism."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


def test_four_all_to_alls_a_layer_take_the_modelled_time() -> None:
    """They take ``(e (D + D_kv) sum(s) / (d_s B) + 2 beta) 2 L / d_p``. Reference: III-A2, Eq. 3."""
    seconds = CostModel(round_profile()).all2all_s(6)

    assert seconds == pytest.approx((2 * (8 + 4) * 6 / (2 * 48.0) + 2 * 0.25) * 2 * 8 / 2)


def test_query_heads_wider_than_the_residual_stream_send_their_own_width() -> None:
    """D is the width of the queries and of what attention gives, which a head_dim of its own changes. See Eq. 3."""
    profile = round_profile()
    wide = dataclasses.replace(profile, model=dataclasses.replace(profile.model, query_dim=20))

    seconds = CostModel(wide).all2all_s(6)

    assert seconds == pytest.approx((2 * (20 + 4) * 6 / (2 * 48.0) + 2 * 0.25) * 2 * 8 / 2)


def test_one_rank_a_stage_holds_all_heads_and_exchanges_nothing() -> None:
    """Sequence parallelism of degree 1 has nobody to talk to. Reference: III-A2, Eq. 3."""
    assert CostModel(round_profile(sp_size=1)).all2all_s(6) == 0.0
