"""Chunks of equal work (policy ``search``): long sequences are cut one by one, short ones go where most room is.

Where Alg. 1 cuts all sequences by one slice plan and loosens a threshold, this starts from the work that a chunk should
have. A pipeline fills and drains at the pace of its first and last chunks, so a few smaller ones, a ramp, may stand at
both ends.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import Chunk, Slice
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.cost_model.slice_work import SliceWork

# A sequence slightly longer than its slices' target is not cut once more: a chunk less saves its fixed seconds.
_OVERFULL_RATIO = 0.15


@dataclass(frozen=True, slots=True)
class Ramp:
    """Work of the chunks at both ends of a pipeline, relative to the others; empty where there is no ramp."""

    up: tuple[float, ...] = ()
    down: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class BalancedChunks:
    """A batch in chunks of nearly equal work.

    Attributes:
        ramp_up: Batched chunks for the beginning, lightest first.
        long_chains: Chains of the sequences that were cut, most chunks first; the last chunk of each may be hybrid.
        batched: Batched chunks of full work.
        ramp_down: Batched chunks for the end, heaviest first.
    """

    ramp_up: tuple[ChunkChain, ...]
    long_chains: tuple[ChunkChain, ...]
    batched: tuple[ChunkChain, ...]
    ramp_down: tuple[ChunkChain, ...]


def balance_chunks(
    lengths_tokens: Sequence[int],
    work: SliceWork,
    target_work_s: float,
    ramp: Ramp,
    *,
    max_slice_count: int = 0,
) -> BalancedChunks:
    """Cut long sequences at equal work and pack short ones into the chunk with the most room.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        work: What a slice costs.
        target_work_s: Work that a chunk should have. More than 0.
        ramp: Smaller chunks for both ends.
        max_slice_count: Most slices of a sequence; 0 means no limit.
    """
    most_slices = max_slice_count or max(lengths_tokens)
    long_slices: list[list[Slice]] = []
    short: list[tuple[float, Slice]] = []
    for sequence_index, length in enumerate(lengths_tokens):
        work_s = work.prefix_work_s(length)
        if work_s > target_work_s and min(length, most_slices) > 1:
            slice_count = min(max(2, math.ceil(work_s / target_work_s - _OVERFULL_RATIO)), length, most_slices)
            long_slices.append(_cut(sequence_index, length, slice_count, work))
        else:
            short.append((work_s, Slice(sequence_index, 0, length)))
    tail_room_s = [target_work_s - work.work_s(s[-1].start_token, s[-1].length_tokens) for s in long_slices]
    ramp_room_s = [ratio * target_work_s for ratio in (*ramp.up, *ramp.down)]
    left_s = sum(work_s for work_s, _ in short) - sum(ramp_room_s) - sum(max(room, 0.0) for room in tail_room_s)
    full_count = max(0 if ramp_room_s else 1, math.ceil(left_s / target_work_s))
    bins = _fill([*ramp_room_s, *[target_work_s] * full_count, *tail_room_s], short)

    ramps, rest = bins[: len(ramp_room_s)], bins[len(ramp_room_s) :]
    full, tails = rest[:full_count], rest[full_count:]
    chains = [
        (*(Chunk((piece,)) for piece in slices[:-1]), Chunk((slices[-1], *packed)))
        for slices, packed in zip(long_slices, tails, strict=True)
    ]
    return BalancedChunks(
        ramp_up=_batched(ramps[: len(ramp.up)]),
        long_chains=tuple(sorted(chains, key=len, reverse=True)),
        batched=_batched(full),
        ramp_down=_batched(ramps[len(ramp.up) :]),
    )


def _cut(sequence_index: int, length: int, slice_count: int, work: SliceWork) -> list[Slice]:
    """Cut one sequence into slices of equal work, each of at least one token."""
    slices, start = [], 0
    whole_s = work.prefix_work_s(length)
    for cut in range(1, slice_count + 1):
        balanced = round(work.prefix_tokens(whole_s * cut / slice_count)) if cut < slice_count else length
        end = min(max(balanced, start + 1), length - (slice_count - cut))
        slices.append(Slice(sequence_index, start, end - start))
        start = end
    return slices


def _fill(room_s: Sequence[float], short: Sequence[tuple[float, Slice]]) -> list[list[Slice]]:
    """Put the heaviest sequence first into the bin with the most room left."""
    bins: list[list[Slice]] = [[] for _ in room_s]
    heap = [(-room, number) for number, room in enumerate(room_s)]
    heapq.heapify(heap)
    for work_s, piece in sorted(short, reverse=True):
        room, number = heap[0]
        bins[number].append(piece)
        heapq.heapreplace(heap, (room + work_s, number))
    return bins


def _batched(bins: Sequence[Sequence[Slice]]) -> tuple[ChunkChain, ...]:
    return tuple((Chunk(tuple(slices)),) for slices in bins if slices)
