"""Alg. 1: workload-balanced sequence chunking."""

import pytest

from infinipipe_contract.plan import Slice
from infinipipe_planner.chunking.pack import pack_buckets
from infinipipe_planner.chunking.slice_plan import split_slice_plan
from infinipipe_planner.chunking.split import split_sequences
from infinipipe_planner.cost_model.slice_work import SliceWork
from support_planner.profiles import round_profile

WORK = SliceWork(round_profile(sp_size=1))


def works(*tokens: int) -> float:
    return sum(WORK.work_s(0, count) for count in tokens)


def test_line_1_splits_the_longest_sequence_into_slices_of_equal_backward_work() -> None:
    """A mesh is obtained by splitting the longest sequence into K workload-balanced slices. Reference: III-B."""
    slice_plan = split_slice_plan(100_000, 5, WORK)

    starts = [sum(slice_plan[:index]) for index in range(5)]
    work_s = [WORK.work_s(start, tokens) for start, tokens in zip(starts, slice_plan, strict=True)]
    assert sum(slice_plan) == 100_000
    assert work_s == pytest.approx([WORK.prefix_work_s(100_000) / 5] * 5, rel=1e-3)
    assert list(slice_plan) == sorted(slice_plan, reverse=True)


def test_line_2_shards_long_sequences_by_the_mesh_and_leaves_a_remainder() -> None:
    """With a mesh {8K, 4K, 2K}, a sequence of more than 12K is split into 8K, 4K and a remainder. Reference: III-B."""
    split = split_sequences([14, 13, 9, 8, 3], [8, 4, 2])

    assert [[piece.length_tokens for piece in pieces] for pieces in split.long_sequences] == [
        [8, 4, 2],
        [8, 4, 1],
        [8, 1],
    ]
    assert [piece.sequence_index for piece in split.short_sequences] == [3, 4]


def test_line_3_opens_one_bucket_a_tail_slice_so_that_no_two_tails_meet() -> None:
    """Packing of two tail slices is avoided as it forces co-scheduling of two long sequences. Reference: III-A1."""
    tails = [Slice(0, 8, 1), Slice(1, 8, 2), Slice(2, 8, 3)]

    buckets = pack_buckets(tails, [Slice(3, 0, 1)], WORK, work_threshold_s=1e9, token_threshold=1000)

    assert sorted(bucket.slices[0] for bucket in buckets) == tails


def test_lines_9_and_10_open_a_bucket_where_no_bucket_has_room_for_the_tokens() -> None:
    """A sequence that the emptiest bucket cannot take without passing T_m opens a new one. Reference: Alg. 1, 9-10."""
    shorts = [Slice(0, 0, 6), Slice(1, 0, 5), Slice(2, 0, 4)]

    buckets = pack_buckets([], shorts, WORK, work_threshold_s=1e9, token_threshold=10)

    assert sorted([piece.length_tokens for piece in bucket.slices] for bucket in buckets) == [[5, 4], [6]]


def test_lines_14_to_16_fill_the_bucket_of_the_least_work_per_token_first() -> None:
    """Short sequences go where tot_time / tot_tokens is least: away from long contexts. Reference: III-B."""
    heavy, light = Slice(0, 50, 4), Slice(1, 10, 4)

    buckets = pack_buckets([heavy, light], [Slice(2, 0, 1)], WORK, work_threshold_s=1e9, token_threshold=100)

    assert {bucket.slices[0]: len(bucket.slices) for bucket in buckets} == {heavy: 1, light: 2}


def test_line_15_skips_a_bucket_that_would_pass_the_time_threshold() -> None:
    """A bucket takes a sequence only while tot_time stays within T_t. Reference: Alg. 1, line 15."""
    light, other = Slice(0, 10, 4), Slice(1, 50, 1)
    threshold_s = WORK.work_s(50, 1) + works(2)

    buckets = pack_buckets([light, other], [Slice(2, 0, 2)], WORK, work_threshold_s=threshold_s, token_threshold=100)

    assert WORK.work_s(10, 4) + works(2) > threshold_s
    assert {bucket.slices[0]: len(bucket.slices) for bucket in buckets} == {light: 1, other: 2}


def test_line_24_loosens_the_time_threshold_to_the_least_loaded_bucket() -> None:
    """Where nothing fits, T_t becomes the least tot_time plus the sequence, and no bucket is opened.

    Reference: Alg. 1, lines 23 and 24.
    """
    busy, idle = Slice(0, 20, 4), Slice(1, 20, 2)

    buckets = pack_buckets([busy, idle], [Slice(2, 0, 3)], WORK, work_threshold_s=1.0, token_threshold=100)

    assert {bucket.slices[0]: len(bucket.slices) for bucket in buckets} == {busy: 1, idle: 2}


def test_loosening_ends_when_the_least_loaded_bucket_has_no_room_for_the_tokens() -> None:
    """Line 24 read over all buckets would repeat for ever: the minimum is taken where the tokens fit."""
    full, roomy = Slice(0, 1, 9), Slice(1, 90, 4)
    assert WORK.work_s(1, 9) < WORK.work_s(90, 4)

    buckets = pack_buckets([full, roomy], [Slice(2, 0, 3)], WORK, work_threshold_s=1.0, token_threshold=10)

    assert {bucket.slices[0]: len(bucket.slices) for bucket in buckets} == {full: 1, roomy: 2}
