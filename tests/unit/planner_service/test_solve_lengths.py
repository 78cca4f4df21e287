"""Lengths that cannot be planned are refused in a sentence."""

import pytest

from infinipipe_planner.errors import InvalidLengthsError
from infinipipe_planner.lengths import MAX_SEQUENCES, check_lengths


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ([], "the batch has no sequences, it needs at least 1"),
        ([5, 0], "sequence 1 has 0 tokens, it needs at least 1"),
        ([-7], "sequence 0 has -7 tokens, it needs at least 1"),
        ([5, 4096, 4097], "sequence 2 has 4097 tokens, the context allows 4096 (context_tokens)"),
        ([1] * 1_000_000, "the batch has 1000000 sequences, at most 131072 are allowed"),
    ],
)
def test_bad_lengths_are_refused_with_value_index_and_limit(lengths: list[int], sentence: str) -> None:
    with pytest.raises(InvalidLengthsError) as caught:
        check_lengths(lengths, context_tokens=4096)

    assert str(caught.value) == sentence


def test_lengths_up_to_the_limits_are_accepted() -> None:
    check_lengths([1, 4096] * (MAX_SEQUENCES // 2), context_tokens=4096)
    check_lengths([10**9])
