"""Eq. 1: computation of a chunk."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.chunks import chunk
from support_planner.profiles import round_profile


def test_computation_grows_with_the_square_of_lengths_and_the_slice_with_context_pays_for_its_context() -> None:
    """The time is ``(alpha1 ((C + s0)^2 - C^2) + alpha2 s0 + sum(alpha1 s^2 + alpha2 s)) / N + beta1 / d_p``.

    Reference: III-A2, Eq. 1.
    """
    costs = CostModel(round_profile(beta1=6.0))
    hybrid = chunk((0, 3, 2), (1, 0, 4))  # C = 3, s0 = 2, one other slice of 4

    seconds = costs.compute_s(costs.profile.forward, hybrid)

    assert seconds == pytest.approx(((3 + 2) ** 2 - 3**2 + 10 * 2 + 4**2 + 10 * 4) / 4 + 6.0 / 2)


def test_computation_of_a_sequence_does_not_depend_on_how_it_is_cut() -> None:
    """The terms of consecutive slices add up to those of the whole sequence. Reference: III-A2, Eq. 1."""
    costs = CostModel(round_profile())
    whole = costs.compute_s(costs.profile.backward, chunk((0, 0, 9)))

    parts = [costs.compute_s(costs.profile.backward, chunk(piece)) for piece in ((0, 0, 4), (0, 4, 3), (0, 7, 2))]

    assert sum(parts) == pytest.approx(whole)
