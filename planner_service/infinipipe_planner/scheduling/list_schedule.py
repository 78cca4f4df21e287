"""List scheduling (policy ``search``): a pipeline's action lists by replay instead of by a fixed window.

The paper keeps a constant number of chunks in flight (Eq. 7). Here every stage, whenever it is free, takes a backward
pass if one is ready, else a forward pass if memory has room for it: windows grow where memory allows, which absorbs
unequal chunks and messages, and shrink behind a long sequence. Orders are the paper's: forwards in the order of chains,
backwards chain by chain in reverse.

A forward that the next backward needs is always admitted, so the stages cannot wait for each other for ever; where that
exceeds memory, recompute has to make the room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import ActionKind
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.scheduling.chunk_prices import ChunkPrices
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder, reverse_chains


@dataclass(frozen=True, slots=True)
class ListRules:
    """How a free stage chooses.

    Attributes:
        memory_ratio: Share of the free memory that forwards may fill; above 1 recompute has to make the room.
        feed_chunks: A forward goes first while the next stage has fewer forwards than this waiting.
        patience_ratio: A stage waits for a backward up to this share of a mean forward before it starts one.
    """

    memory_ratio: float = 1.0
    feed_chunks: int = 0
    patience_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Action lists, the seconds they take without recompute, and whether they fit in memory without it."""

    order: PipelineOrder
    makespan_s: float
    fits: bool


def list_schedule(chains: Sequence[ChunkChain], prices: ChunkPrices, rules: ListRules) -> ListSchedule:
    """Schedule the chunks of one pipeline.

    Args:
        chains: In the order they run forward.
        prices: Seconds and bytes of their chunks, in the same order.
        rules: How a free stage chooses.
    """
    chunks = tuple(chunk for chain in chains for chunk in chain)
    backward_order = reverse_chains([len(chain) for chain in chains])
    stages = _Stages(prices, backward_order, rules)
    stages.run()
    order = PipelineOrder(chunks, backward_order, tuple(map(tuple, stages.passes)))
    return ListSchedule(order, max(stages.clock_s), stages.fits)


class _Stages:
    """State of all stages during the replay."""

    def __init__(self, prices: ChunkPrices, backward_order: Sequence[int], rules: ListRules) -> None:
        self.prices = prices
        self.backward_order = backward_order
        self.rules = rules
        self.stage_count, self.chunk_count = len(prices.forward_s), len(prices.transfer_s)
        self.last = self.stage_count - 1
        self.patience_s = rules.patience_ratio * sum(prices.forward_s[self.last]) / self.chunk_count
        # Forwards that must have run before the k-th backward.
        self.needed: list[int] = []
        for chunk_index in backward_order:
            self.needed.append(max(chunk_index + 1, self.needed[-1] if self.needed else 0))
        self.clock_s = [0.0] * self.stage_count
        self.forwards, self.backwards = [0] * self.stage_count, [0] * self.stage_count
        self.held_bytes = [0.0] * self.stage_count
        self.forward_end_s = [[math.inf] * self.chunk_count for _ in range(self.stage_count)]
        self.backward_end_s = [[math.inf] * self.chunk_count for _ in range(self.stage_count)]
        self.passes: list[list[tuple[ActionKind, int]]] = [[] for _ in range(self.stage_count)]
        self.fits = True

    def run(self) -> None:
        """Start the earliest action of all stages until every chunk is through."""
        upcoming = [self._choose(stage_index) for stage_index in range(self.stage_count)]
        for _ in range(2 * self.chunk_count * self.stage_count):
            stage_index = min(range(self.stage_count), key=lambda index: upcoming[index][0])
            start_s, kind = upcoming[stage_index]
            assert start_s < math.inf, "a needed forward is always admitted"
            self._start(stage_index, start_s, kind)
            upcoming[stage_index] = self._choose(stage_index)
            neighbour = stage_index + (1 if kind is ActionKind.FORWARD else -1)
            if 0 <= neighbour < self.stage_count:
                upcoming[neighbour] = self._choose(neighbour)

    def _choose(self, stage_index: int) -> tuple[float, ActionKind]:
        """Tell what a stage starts next and when; never, while nothing is ready."""
        backward_s, forward_s = self._backward_start_s(stage_index), self._forward_start_s(stage_index)
        starves = (
            stage_index < self.last
            and forward_s <= backward_s
            and self.forwards[stage_index] - self.forwards[stage_index + 1] < self.rules.feed_chunks
        )
        if not starves and backward_s <= forward_s + self.patience_s:
            return backward_s, ActionKind.BACKWARD
        return forward_s, ActionKind.FORWARD

    def _backward_start_s(self, stage_index: int) -> float:
        done = self.backwards[stage_index]
        if done == self.chunk_count:
            return math.inf
        chunk_index = self.backward_order[done]
        own_s = self.forward_end_s[stage_index][chunk_index]
        if stage_index == self.last or own_s == math.inf:
            return max(self.clock_s[stage_index], own_s)
        message_s = self.backward_end_s[stage_index + 1][chunk_index] + self.prices.transfer_s[chunk_index]
        return max(self.clock_s[stage_index], message_s)

    def _forward_start_s(self, stage_index: int) -> float:
        chunk_index, backwards = self.forwards[stage_index], self.backwards[stage_index]
        if chunk_index == self.chunk_count:
            return math.inf
        is_needed = chunk_index < self.needed[backwards]
        if not is_needed and not self._has_room(stage_index, chunk_index, self.rules.memory_ratio):
            return math.inf
        if stage_index == 0:
            return self.clock_s[0]
        message_s = self.forward_end_s[stage_index - 1][chunk_index] + self.prices.transfer_s[chunk_index]
        return max(self.clock_s[stage_index], message_s)

    def _has_room(self, stage_index: int, chunk_index: int, memory_ratio: float) -> bool:
        after_bytes = self.held_bytes[stage_index] + self.prices.held_bytes[stage_index][chunk_index]
        return after_bytes <= memory_ratio * self.prices.free_bytes[stage_index]

    def _start(self, stage_index: int, start_s: float, kind: ActionKind) -> None:
        prices = self.prices
        if kind is ActionKind.FORWARD:
            chunk_index = self.forwards[stage_index]
            self.fits = self.fits and self._has_room(stage_index, chunk_index, 1.0)
            self.forwards[stage_index] += 1
            self.held_bytes[stage_index] += prices.held_bytes[stage_index][chunk_index]
            end_s = self.forward_end_s[stage_index][chunk_index] = start_s + prices.forward_s[stage_index][chunk_index]
        else:
            chunk_index = self.backward_order[self.backwards[stage_index]]
            self.backwards[stage_index] += 1
            self.held_bytes[stage_index] -= prices.held_bytes[stage_index][chunk_index]
            end_s = start_s + prices.backward_s[stage_index][chunk_index]
            self.backward_end_s[stage_index][chunk_index] = end_s
        self.clock_s[stage_index] = end_s
        self.passes[stage_index].append((kind, chunk_index))
