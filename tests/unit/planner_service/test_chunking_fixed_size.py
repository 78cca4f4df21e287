"""Chunks of a fixed number of tokens."""

from infinipipe_planner.chunking.fixed_size import pack_whole, split_fixed
from support_planner.chunks import chunk


def test_long_sequences_are_cut_at_equal_length_and_their_tails_filled_up() -> None:
    assert split_fixed([10, 2, 3, 4], 4) == [
        (chunk((0, 0, 4)), chunk((0, 4, 4)), chunk((0, 8, 2), (1, 0, 2))),
        (chunk((3, 0, 4)),),
        (chunk((2, 0, 3)),),
    ]


def test_a_sequence_of_exactly_one_chunk_stays_whole() -> None:
    assert split_fixed([4], 4) == [(chunk((0, 0, 4)),)]


def test_two_tails_never_share_a_chunk() -> None:
    chains = split_fixed([5, 5], 4)

    assert [chain[-1] for chain in chains] == [chunk((0, 4, 1)), chunk((1, 4, 1))]


def test_the_longest_sequence_goes_into_the_fullest_chunk_with_room() -> None:
    # 6 and 5 open chunks of 10; 4 fits behind the 6 exactly, 3 only behind the 5.
    assert pack_whole([3, 4, 5, 6], 10) == [(chunk((3, 0, 6), (1, 0, 4)),), (chunk((2, 0, 5), (0, 0, 3)),)]


def test_a_sequence_longer_than_a_chunk_has_one_of_its_own_when_none_is_cut() -> None:
    assert pack_whole([9, 1, 2], 4) == [(chunk((0, 0, 9)),), (chunk((2, 0, 2), (1, 0, 1)),)]
