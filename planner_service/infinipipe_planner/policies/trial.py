"""A trial of policy ``search``: one way to cut, pack, order and schedule a batch, and the ways near it."""

import dataclasses
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from infinipipe_planner.chunking.balance import BalancedChunks, Ramp
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.scheduling.list_schedule import ListRules


class Order(enum.Enum):
    """Where the sequences that were cut run."""

    LONG_FIRST = "long first"
    LONG_LAST = "long last"

    def arrange(self, chunks: BalancedChunks) -> list[ChunkChain]:
        """Order the chains of a batch; ramps stay at both ends."""
        if self is Order.LONG_FIRST:
            middle = (*chunks.long_chains, *chunks.batched)
        else:
            middle = (*chunks.batched, *reversed(chunks.long_chains))
        return [*chunks.ramp_up, *middle, *chunks.ramp_down]


RAMPS = (
    Ramp(),
    Ramp(up=(0.3, 0.5, 0.8), down=(0.8, 0.6, 0.5)),
    Ramp(up=(0.2, 0.33, 0.55, 0.9), down=(0.8, 0.65, 0.5, 0.4)),
)
"""Sizes may grow faster at the beginning than shrink at the end. With backwards twice as long as forwards, the last
stage does not run dry while a chunk is at most ``1 + 2 / (pp_size - 1)`` times all before it; at the end neighbours may
differ by ``1 + 1 / (2 * (pp_size - 1))``."""

RULES = (ListRules(), ListRules(feed_chunks=3))


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to plan a batch.

    Attributes:
        chunk_count: Chunks that the work is divided by; the plan may have a few more.
        ramp: Smaller chunks at both ends.
        order: Where the long sequences run.
        rules: How a free stage chooses its next action.
    """

    chunk_count: int
    ramp: Ramp
    order: Order
    rules: ListRules

    def neighbours(self) -> Iterator["Trial"]:
        """Change one thing at a time, the most promising first."""
        for ratio in (1.05, 0.95, 1.12, 0.88):
            yield dataclasses.replace(self, chunk_count=max(1, round(self.chunk_count * ratio)))
        rules = self.rules
        nearby = [dataclasses.replace(rules, memory_ratio=ratio) for ratio in (1.0, 1.1, 1.25, 1.5)]
        nearby += [dataclasses.replace(rules, feed_chunks=count) for count in (0, 1, 2, 3, 4)]
        nearby += [dataclasses.replace(rules, patience_ratio=ratio) for ratio in (0.0, 0.2, 0.5)]
        for changed in nearby:
            yield dataclasses.replace(self, rules=changed)
        for ramp in RAMPS:
            yield dataclasses.replace(self, ramp=ramp)
        for order in Order:
            yield dataclasses.replace(self, order=order)
