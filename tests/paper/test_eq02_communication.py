"""Eq. 2: communication of a volume."""

import pytest

from infinipipe_contract.cost_model import CostModel
from support_planner.profiles import round_profile


def test_a_message_takes_its_volume_over_the_bandwidth_and_the_latency() -> None:
    """Communication takes ``V / B_comm + beta_comm``, once a message. Reference: III-A2, Eq. 2.

    A stage sends one row of the hidden state a token: 2 bytes * 8 * 6 tokens over 2 devices.
    """
    seconds = CostModel(round_profile()).transfer_s(6)

    assert seconds == pytest.approx(2 * 8 * 6 / 2 / 16.0 + 0.5)
