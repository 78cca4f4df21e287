"""Packing of tail slices and short sequences into buckets (paper, III-B; lines 3 to 15 of Alg. 1)."""

import bisect
from collections.abc import Iterable, Sequence

from infinipipe_contract.plan import Slice
from infinipipe_planner.cost_model.slice_work import SliceWork


class Bucket:
    """Slices that will become one chunk.

    Attributes:
        slices: A tail slice, if any, stands first.
        work_s: Backward work of all slices (Alg. 1: tot_time).
        tokens: Tokens of all slices (Alg. 1: tot_tokens).
    """

    def __init__(self, first: Slice, work_s: float) -> None:
        self.slices = [first]
        self.work_s = work_s
        self.tokens = first.length_tokens

    @property
    def metric(self) -> float:
        """Work per token: high where long sequences are."""
        return self.work_s / self.tokens

    def combine(self, piece: Slice, work_s: float) -> None:
        """Add a short sequence."""
        self.slices.append(piece)
        self.work_s += work_s
        self.tokens += piece.length_tokens


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
    buckets = [Bucket(tail, work.work_s(tail.start_token, tail.length_tokens)) for tail in tail_slices]
    buckets.sort(key=_metric)
    for piece in sorted(short_sequences, key=lambda piece: -piece.length_tokens):
        piece_work_s = work.work_s(0, piece.length_tokens)
        token_room = token_threshold - piece.length_tokens
        chosen = _first_fit(buckets, work_threshold_s - piece_work_s, token_room)
        if chosen is None:
            # Only buckets with room for the tokens count: the minimum over all of them would never let the loop end.
            least_work_s = min((bucket.work_s for bucket in buckets if bucket.tokens <= token_room), default=None)
            if least_work_s is None:
                bisect.insort(buckets, Bucket(piece, piece_work_s), key=_metric)
                continue
            work_threshold_s = least_work_s + piece_work_s
            chosen = _first_fit(buckets, least_work_s, token_room)
            assert chosen is not None, "the least loaded bucket has room for its own work"
        bucket = buckets.pop(chosen)
        bucket.combine(piece, piece_work_s)
        bisect.insort(buckets, bucket, key=_metric)
    return buckets


def _metric(bucket: Bucket) -> float:
    return bucket.metric


def _first_fit(buckets: Sequence[Bucket], work_room_s: float, token_room: int) -> int | None:
    for index, bucket in enumerate(buckets):
        if bucket.work_s <= work_room_s and bucket.tokens <= token_room:
            return index
    return None
