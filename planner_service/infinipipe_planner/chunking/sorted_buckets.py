"""Buckets in the order of their work per token, in blocks that know their least work and tokens.

Alg. 1 looks at every bucket for every short sequence. A block whose least loaded bucket has no room needs no look, so
large batches are packed in a fraction of the time, into the same buckets.
"""

import bisect
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from infinipipe_contract.plan import Slice

_BLOCK_BUCKETS = 64


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


class _Block:
    """A run of neighbours, never empty."""

    def __init__(self, buckets: list[Bucket]) -> None:
        self.buckets = buckets
        self.measure()

    def measure(self) -> None:
        self.least_work_s = min(bucket.work_s for bucket in self.buckets)
        self.least_tokens = min(bucket.tokens for bucket in self.buckets)
        self.last_metric = self.buckets[-1].metric

    def add(self, bucket: Bucket) -> None:
        bisect.insort(self.buckets, bucket, key=_metric)
        self.least_work_s = min(self.least_work_s, bucket.work_s)
        self.least_tokens = min(self.least_tokens, bucket.tokens)
        self.last_metric = self.buckets[-1].metric

    def split(self) -> "_Block":
        """Cut the second half off."""
        tail = _Block(self.buckets[_BLOCK_BUCKETS:])
        del self.buckets[_BLOCK_BUCKETS:]
        self.measure()
        return tail


class Place(NamedTuple):
    """Where a bucket stands: block, and place within it."""

    block_number: int
    place_in_block: int


class SortedBuckets:
    """Buckets, lowest work per token first; of equals the one that came first stands first."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        ordered = sorted(buckets, key=_metric)
        starts = range(0, len(ordered), _BLOCK_BUCKETS)
        self._blocks = [_Block(ordered[start : start + _BLOCK_BUCKETS]) for start in starts]

    def __iter__(self) -> Iterator[Bucket]:
        for block in self._blocks:
            yield from block.buckets

    def first_fit(self, work_room_s: float, token_room: int) -> Place | None:
        """Find the first bucket with at most that work and that many tokens."""
        for number, block in enumerate(self._blocks):
            if block.least_work_s <= work_room_s and block.least_tokens <= token_room:
                for index, bucket in enumerate(block.buckets):
                    if bucket.work_s <= work_room_s and bucket.tokens <= token_room:
                        return Place(number, index)
        return None

    def least_work_s(self, token_room: int) -> float | None:
        """Find the least work of the buckets with at most that many tokens."""
        least_s = math.inf
        for block in self._blocks:
            if block.least_work_s < least_s and block.least_tokens <= token_room:
                least_s = min(
                    (b.work_s for b in block.buckets if b.tokens <= token_room and b.work_s < least_s), default=least_s
                )
        return least_s if least_s < math.inf else None

    def pop(self, place: Place) -> Bucket:
        """Take a bucket out."""
        block = self._blocks[place.block_number]
        bucket = block.buckets.pop(place.place_in_block)
        if not block.buckets:
            del self._blocks[place.block_number]
        elif bucket.work_s <= block.least_work_s or bucket.tokens <= block.least_tokens:
            block.measure()
        else:
            block.last_metric = block.buckets[-1].metric
        return bucket

    def insert(self, bucket: Bucket) -> None:
        """Put a bucket behind those of the same work per token."""
        if not self._blocks:
            self._blocks.append(_Block([bucket]))
            return
        number = bisect.bisect_right(self._blocks, bucket.metric, key=_last_metric)
        block = self._blocks[min(number, len(self._blocks) - 1)]
        block.add(bucket)
        if len(block.buckets) > 2 * _BLOCK_BUCKETS:
            self._blocks.insert(self._blocks.index(block) + 1, block.split())


def _metric(bucket: Bucket) -> float:
    return bucket.metric


def _last_metric(block: _Block) -> float:
    return block.last_metric
