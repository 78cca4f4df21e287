"""A measured profile says how far it was measured; what goes beyond is never predicted without a word."""

import dataclasses

import pytest

from infinipipe_contract.errors import InvalidProfileError
from infinipipe_contract.profile import check_profile, extrapolation
from support_contract import small_profile

MEASURED = dataclasses.replace(small_profile(), name="here", measured_tokens=100)


@pytest.mark.parametrize("longest_tokens", [1, 100])
def test_batches_as_long_as_what_was_measured_need_no_word(longest_tokens: int) -> None:
    assert extrapolation(MEASURED, longest_tokens) is None


def test_a_longer_sequence_is_told_with_both_lengths() -> None:
    assert extrapolation(MEASURED, 101) == (
        "profile here was measured with up to 100 tokens, a sequence has 101: its predicted times are extrapolated"
    )


def test_a_profile_that_was_never_measured_extrapolates_nothing() -> None:
    assert extrapolation(small_profile(), 10**6) is None


@pytest.mark.parametrize("measured_tokens", [0, -1, 2**31])
def test_a_senseless_length_is_refused(measured_tokens: int) -> None:
    with pytest.raises(InvalidProfileError, match=f"measured_tokens is {measured_tokens}, it must be at"):
        check_profile(dataclasses.replace(MEASURED, measured_tokens=measured_tokens))
