"""Replicas of the pipeline: how a batch is split among them, and how their pipelines become one plan."""

import bisect
import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from infinipipe_contract.plan import ActionKind, Chunk, Pipeline
from infinipipe_contract.profile import Profile
from infinipipe_planner.cost_model.slice_work import SliceWork

_CLOSE_RATIO = 1e-3
"""How far the largest load may be above the mean: predictions are not more exact than this."""


def one_replica(profile: Profile) -> Profile:
    """Give the profile of one replica: what its share of the batch is planned with."""
    return dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, dp_size=1))


def split_batch(lengths_tokens: Sequence[int], profile: Profile) -> list[list[int]]:
    """Split a batch among the replicas so that their predicted work is as equal as whole sequences allow.

    Longest first, every sequence goes to the replica with the least work so far; then sequences are moved or exchanged
    while that takes work off the most loaded replica. Work is that of forward and backward passes by Eqs. 1 and 3,
    without the fixed seconds of a chunk: it grows with the length and with its square.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model.

    Returns:
        For every replica the indices of its sequences, ascending; none where there are fewer sequences than replicas.
    """
    work = SliceWork(profile, tuple(ActionKind))
    loads = [_Load() for _ in range(profile.cluster.dp_size)]
    # A heap: the replica with the least work first, of equals the first.
    queue = [(0.0, replica_index) for replica_index in range(len(loads))]
    for sequence_index in sorted(range(len(lengths_tokens)), key=lambda index: (-lengths_tokens[index], index)):
        _, replica_index = queue[0]
        loads[replica_index].add(_Weighed(work.prefix_work_s(lengths_tokens[sequence_index]), sequence_index))
        heapq.heapreplace(queue, (loads[replica_index].total_s, replica_index))
    _level(loads)
    return [sorted(weighed.sequence_index for weighed in load.sequences) for load in loads]


def place_pipelines(
    pipelines: Sequence[Pipeline], sequence_indices: Sequence[int], replica_index: int
) -> tuple[Pipeline, ...]:
    """Put the pipelines of a share of the batch into the plan of the whole batch.

    Args:
        pipelines: Planned for the share alone, whose sequences count from 0.
        sequence_indices: Index in the batch of every sequence of the share.
        replica_index: Replica that runs them.
    """

    def place_chunk(chunk: Chunk) -> Chunk:
        return Chunk(
            tuple(piece._replace(sequence_index=sequence_indices[piece.sequence_index]) for piece in chunk.slices)
        )

    return tuple(
        dataclasses.replace(
            pipeline, chunks=tuple(place_chunk(chunk) for chunk in pipeline.chunks), replica_index=replica_index
        )
        for pipeline in pipelines
    )


class _Weighed(NamedTuple):
    """A sequence and its work."""

    work_s: float
    sequence_index: int


@dataclasses.dataclass(slots=True)
class _Load:
    """What one replica has: its sequences, lightest first, and their work in sum."""

    sequences: list[_Weighed] = dataclasses.field(default_factory=list)
    total_s: float = 0.0

    def add(self, weighed: _Weighed) -> None:
        bisect.insort(self.sequences, weighed)
        self.total_s += weighed.work_s

    def take(self, weighed: _Weighed) -> _Weighed:
        self.sequences.remove(weighed)
        self.total_s -= weighed.work_s
        return weighed


class _Exchange(NamedTuple):
    """A sequence that one replica gives another, perhaps for one of its own, and the larger load of the two then."""

    larger_s: float
    receiver: _Load
    given: _Weighed
    returned: _Weighed | None


def _level(loads: Sequence[_Load]) -> None:
    """Let the most loaded replica give or exchange a sequence while that lowers the larger load of both."""
    close_s = (1 + _CLOSE_RATIO) * sum(load.total_s for load in loads) / len(loads)
    for _ in range(sum(len(load.sequences) for load in loads)):
        giver = max(loads, key=lambda load: load.total_s)
        exchanges = [_best_exchange(giver, load) for load in loads if load is not giver]
        best = min(exchanges, key=lambda exchange: exchange.larger_s, default=None)
        # A gain below the rounding of sums is none.
        if giver.total_s <= close_s or best is None or best.larger_s > (1 - 1e-9) * giver.total_s:
            return
        best.receiver.add(giver.take(best.given))
        if best.returned is not None:
            giver.add(best.receiver.take(best.returned))


def _best_exchange(giver: _Load, receiver: _Load) -> _Exchange:
    """Find the exchange that brings both closest to half of what they have together."""
    wanted_s = (giver.total_s - receiver.total_s) / 2
    best = _Exchange(giver.total_s, receiver, giver.sequences[0], None)
    for given in giver.sequences:
        position = bisect.bisect_left(receiver.sequences, (given.work_s - wanted_s, -1))
        for returned in (None, *receiver.sequences[max(position - 1, 0) : position + 1]):
            net_s = given.work_s - (returned.work_s if returned else 0.0)
            larger_s = max(giver.total_s - net_s, receiver.total_s + net_s)
            if larger_s < best.larger_s:
                best = _Exchange(larger_s, receiver, given, returned)
    return best
