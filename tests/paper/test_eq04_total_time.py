"""Eq. 4: time of a chunk."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.chunks import chunk
from support_planner.profiles import round_profile


def test_a_pass_takes_computation_and_communication_in_both_directions() -> None:
    """``T_tot = T_comp + T_all2all``, applicable in both forward and backward passes. Reference: III-A2, Eq. 4."""
    costs = CostModel(round_profile())
    piece = chunk((0, 3, 2))

    forward, backward = costs.forward_s(piece, 0), costs.backward_s(piece, 0, 0)

    assert forward == pytest.approx(costs.compute_s(costs.profile.forward, piece) + costs.all2all_s(2))
    assert backward == pytest.approx(costs.compute_s(costs.profile.backward, piece) + costs.all2all_s(2))


def test_gathering_parameters_counts_only_where_it_outlasts_the_computation() -> None:
    """ZeRO's gather and scatter can overlap with computation. Reference: II-A, III-A2."""
    profile = dataclasses.replace(round_profile(), param_gather_s=(1e-6, 1000.0))
    costs = CostModel(profile)
    piece = chunk((0, 0, 2))

    hidden, exposed = costs.forward_s(piece, 0), costs.forward_s(piece, 1)

    assert hidden == pytest.approx(costs.compute_s(profile.forward, piece) + costs.all2all_s(2))
    assert exposed == pytest.approx(1000.0 + costs.all2all_s(2))
