"""Packing of tail slices and short sequences into buckets (paper, III-B; lines 3 to 15 of Alg. 1)."""

from collections.abc import Iterable, Sequence

from infinipipe_contract.plan import Slice
from infinipipe_planner.chunking.sorted_buckets import Bucket, SortedBuckets
from infinipipe_planner.cost_model.slice_work import SliceWork


def pack_buckets(
    tail_slices: Iterable[Slice],
    short_sequences: Sequence[Slice],
    work: SliceWork,
    *,
    work_threshold_s: float,
    token_threshold: int,
) -> list[Bucket]:
    """Pack short sequences, heaviest first, into the fitting bucket of the lowest work per token.

    Args:
        tail_slices: Each opens a bucket of its own, so that no bucket holds two.
        short_sequences: Whole sequences.
        work: What a slice costs.
        work_threshold_s: Work a bucket should not exceed (Alg. 1: T_t); loosened where no bucket could take a sequence.
        token_threshold: Tokens that no bucket of more than one slice exceeds (Alg. 1: T_m).

    Returns:
        Buckets, lowest work per token first.
    """
    buckets = SortedBuckets(Bucket(tail, work.work_s(tail.start_token, tail.length_tokens)) for tail in tail_slices)
    for piece in sorted(short_sequences, key=lambda piece: -piece.length_tokens):
        piece_work_s = work.work_s(0, piece.length_tokens)
        token_room = token_threshold - piece.length_tokens
        chosen = buckets.first_fit(work_threshold_s - piece_work_s, token_room)
        if chosen is None:
            # Only buckets with room for the tokens count: the minimum over all of them would never let the loop end.
            least_work_s = buckets.least_work_s(token_room)
            if least_work_s is None:
                buckets.insert(Bucket(piece, piece_work_s))
                continue
            work_threshold_s = least_work_s + piece_work_s
            chosen = buckets.first_fit(least_work_s, token_room)
            assert chosen is not None, "the least loaded bucket has room for its own work"
        bucket = buckets.pop(chosen)
        bucket.combine(piece, piece_work_s)
        buckets.insert(bucket)
    return list(buckets)
