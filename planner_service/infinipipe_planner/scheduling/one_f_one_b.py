"""The 1F1B order of one pipeline (paper, III-A3 and III-C1).

Forwards run sequence after sequence, the longest first. Backwards run in the same order of sequences, but the slices of
a sequence in reverse. Two stages, a sequence A of three chunks (0 to 2) and short ones B and C (3 and 4)::

    stage 0:  F0 F1 F2 F3    B2 F4 B1    B0    B3    B4      window 4
    stage 1:     F0 F1 F2 B2 F3 B1 F4 B0    B3    B4         window 3
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from infinipipe_contract.plan import Action, ActionKind, Chunk, Pipeline
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.scheduling.window import window_size


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """Chunks of one pipeline and the order they run in.

    Attributes:
        chunks: Chunks in forward order.
        backward_order: Index into ``chunks`` of the k-th backward.
        stages: Per stage, the passes in the order they run.
        backward_rank: Place of every chunk in the backward order (paper: f2b).
    """

    chunks: tuple[Chunk, ...]
    backward_order: tuple[int, ...]
    stages: tuple[tuple[tuple[ActionKind, int], ...], ...]
    backward_rank: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        rank = {chunk_index: place for place, chunk_index in enumerate(self.backward_order)}
        object.__setattr__(self, "backward_rank", tuple(rank[index] for index in range(len(self.chunks))))


def order_pipeline(chains: Sequence[ChunkChain], pp_size: int) -> PipelineOrder:
    """Order the chunks of one pipeline on every stage.

    Args:
        chains: Chains of the pipeline's sequences, at least one; any order.
        pp_size: Stages.
    """
    longest_first = sorted(chains, key=lambda chain: (-len(chain), -sum(chunk.token_count for chunk in chain)))
    chunks = tuple(chunk for chain in longest_first for chunk in chain)
    backward_order = reverse_chains([len(chain) for chain in longest_first])
    split_count = len(longest_first[0])
    stages = tuple(
        _order_stage(backward_order, window_size(pp_size, stage_index, split_count)) for stage_index in range(pp_size)
    )
    return PipelineOrder(chunks, backward_order, stages)


def reverse_chains(chunk_counts: Sequence[int]) -> tuple[int, ...]:
    """List the chunks in backward order: chain after chain as in forward order, each from its last chunk to its first.

    Args:
        chunk_counts: Chunks of every chain in forward order.
    """
    backward_order: list[int] = []
    for count in chunk_counts:
        first = len(backward_order)
        backward_order.extend(reversed(range(first, first + count)))
    return tuple(backward_order)


def _order_stage(backward_order: Sequence[int], window: int) -> tuple[tuple[ActionKind, int], ...]:
    """Alternate passes so that the window is full before every backward.

    The window holds the longest sequence and no later sequence is longer, so a backward finds its sequence complete.
    """
    passes: list[tuple[ActionKind, int]] = []
    forwards_done = 0
    for backwards_done, chunk_index in enumerate(backward_order):
        while forwards_done < min(backwards_done + window, len(backward_order)):
            passes.append((ActionKind.FORWARD, forwards_done))
            forwards_done += 1
        passes.append((ActionKind.BACKWARD, chunk_index))
    return tuple(passes)


def chunk_windows(passes: Sequence[tuple[ActionKind, int]]) -> list[frozenset[int]]:
    """Find the largest sets of chunks in flight on a stage (paper: W_p(t)).

    Memory only grows in a forward, so the sets just before a backward that follows a forward dominate all others.
    """
    windows, in_flight = [], set[int]()
    grew = False
    for kind, chunk_index in passes:
        if kind is ActionKind.FORWARD:
            in_flight.add(chunk_index)
        else:
            if grew:
                windows.append(frozenset(in_flight))
            in_flight.remove(chunk_index)
        grew = kind is ActionKind.FORWARD
    return windows


def recompute_variable(pp_size: int, stage_index: int, backward_rank: int) -> int:
    """Index of the recompute variable of a backward (Eqs. 15 and 16, 0-based): one variable a diagonal.

    The k-th backward of a stage and the (k+1)-th of the next one share it: recompute on one of them leaves a bubble on
    the other that recompute fills for free.
    """
    return backward_rank + pp_size - 1 - stage_index


def build_pipeline(
    order: PipelineOrder, recompute: Sequence[int], stage_layers: Sequence[int] | None = None
) -> Pipeline:
    """Join the order with the recompute variables (paper: C) to a pipeline.

    Args:
        order: Chunks and their order.
        recompute: Layers of every diagonal.
        stage_layers: Layers of every stage: one that has fewer than its diagonal recomputes all it has. None where
            every stage has as many.
    """
    pp_size = len(order.stages)
    stages = []
    for stage_index, passes in enumerate(order.stages):
        actions = []
        for kind, chunk_index in passes:
            layer_count = 0
            if kind is ActionKind.FORWARD:
                layer_count = recompute[recompute_variable(pp_size, stage_index, order.backward_rank[chunk_index])]
                if stage_layers is not None:
                    layer_count = min(layer_count, stage_layers[stage_index])
            actions.append(Action(kind, chunk_index, layer_count))
        stages.append(tuple(actions))
    return Pipeline(order.chunks, tuple(stages))
