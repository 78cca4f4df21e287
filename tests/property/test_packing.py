"""Packing: the same buckets as the plain loop of Alg. 1, and no bucket above its caps."""

import bisect
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infinipipe_contract.plan import Slice
from infinipipe_planner.chunking import sorted_buckets
from infinipipe_planner.chunking.pack import pack_buckets
from infinipipe_planner.chunking.sorted_buckets import Bucket
from infinipipe_planner.cost_model.slice_work import SliceWork
from support_planner.batches import github_lengths
from support_planner.profiles import round_profile

WORK = SliceWork(round_profile(sp_size=1))


def metric(bucket: Bucket) -> float:
    return bucket.metric


def pack_plainly(
    tails: Sequence[Slice], shorts: Sequence[Slice], work_threshold_s: float, token_threshold: int
) -> list[Bucket]:
    """Alg. 1, lines 3 to 16, as it is printed: look at every bucket for every sequence."""
    buckets = [Bucket(tail, WORK.work_s(tail.start_token, tail.length_tokens)) for tail in tails]
    buckets.sort(key=metric)
    for piece in sorted(shorts, key=lambda piece: -piece.length_tokens):
        piece_s = WORK.work_s(0, piece.length_tokens)
        with_room = [bucket for bucket in buckets if bucket.tokens + piece.length_tokens <= token_threshold]
        if not with_room:
            bisect.insort(buckets, Bucket(piece, piece_s), key=metric)
            continue
        fitting = [bucket for bucket in with_room if bucket.work_s <= work_threshold_s - piece_s]
        if not fitting:
            least_s = min(bucket.work_s for bucket in with_room)
            work_threshold_s = least_s + piece_s
            fitting = [bucket for bucket in with_room if bucket.work_s <= least_s]
        chosen = fitting[0]
        buckets.remove(chosen)
        chosen.combine(piece, piece_s)
        bisect.insort(buckets, chosen, key=metric)
    return buckets


def contents(buckets: Sequence[Bucket]) -> list[tuple[list[Slice], float, int]]:
    return [(bucket.slices, bucket.work_s, bucket.tokens) for bucket in buckets]


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[Slice], list[Slice]]:
    """Tail slices and short sequences; few different lengths, so that many buckets tie."""
    lengths = st.one_of(st.sampled_from([1, 2, 7]), st.integers(1, 50))
    tails = [
        Slice(index, draw(st.integers(1, 80)), draw(lengths))
        for index in range(draw(st.integers(min_value=0, max_value=8)))
    ]
    shorts = draw(st.lists(lengths, max_size=60))
    return tails, [Slice(len(tails) + index, 0, length) for index, length in enumerate(shorts)]


@settings(max_examples=300, deadline=None)
@given(pieces(), st.integers(1, 120), st.floats(0.0, 5000.0), st.integers(1, 4))
def test_packing_in_blocks_gives_the_buckets_of_the_plain_loop(
    drawn: tuple[list[Slice], list[Slice]], token_threshold: int, work_threshold_s: float, block_buckets: int
) -> None:
    tails, shorts = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_buckets, "_BLOCK_BUCKETS", block_buckets)
        packed = pack_buckets(tails, shorts, WORK, work_threshold_s=work_threshold_s, token_threshold=token_threshold)

    assert contents(packed) == contents(pack_plainly(tails, shorts, work_threshold_s, token_threshold))


def test_packing_in_blocks_gives_the_buckets_of_the_plain_loop_for_a_large_batch() -> None:
    shorts = [Slice(index, 0, length) for index, length in enumerate(github_lengths(3000, 4000, seed=5))]
    tails = [Slice(3000 + index, 4000, 1 + index) for index in range(50)]
    threshold_s = WORK.work_s(0, 4000)

    packed = pack_buckets(tails, shorts, WORK, work_threshold_s=threshold_s, token_threshold=6000)

    assert len(packed) > 4 * sorted_buckets._BLOCK_BUCKETS
    assert contents(packed) == contents(pack_plainly(tails, shorts, threshold_s, 6000))


@settings(max_examples=200, deadline=None)
@given(pieces(), st.integers(1, 120))
def test_no_bucket_of_several_slices_passes_the_token_cap_however_the_work_is_balanced(
    drawn: tuple[list[Slice], list[Slice]], token_threshold: int
) -> None:
    tails, shorts = drawn

    packed = pack_buckets(tails, shorts, WORK, work_threshold_s=1.0, token_threshold=token_threshold)

    assert all(bucket.tokens <= token_threshold for bucket in packed if len(bucket.slices) > 1)
    assert sorted(piece for bucket in packed for piece in bucket.slices) == sorted([*tails, *shorts])


def test_eight_sequences_of_seven_tokens_under_a_cap_of_eight_need_eight_buckets() -> None:
    """The total over the cap would be seven buckets, one of them with fourteen tokens."""
    shorts = [Slice(index, 0, 7) for index in range(8)]

    packed = pack_buckets([], shorts, WORK, work_threshold_s=1e9, token_threshold=8)

    assert [bucket.tokens for bucket in packed] == [7] * 8
