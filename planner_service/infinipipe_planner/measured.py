"""What ranks measured in a step, on one clock.

A rank reports times since its own first action, and when that was: in seconds since the common start of the step, the
moment at which all ranks leave the exchange that agrees on plan and batch. ``on_one_clock`` puts the ranks beside each
other by it; what is left is the time by which they leave that exchange apart.

Reports of older executors do not say it. There the order of messages stands in for it: a forward pass cannot start
before the stage in front of it has ended the same pass, and a stage's first pass starts as soon as its message is
there, so every rank is moved to the earliest moment where that holds.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.plan import ActionKind, ChunkId
from infinipipe_contract.simulate import Timeline


class MeasuredSpan(NamedTuple):
    """One action as it ran: start and end in seconds."""

    kind: ActionKind
    chunk_id: ChunkId
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """What one rank measured in one step.

    Attributes:
        rank: Global rank.
        stage_index: Its stage, from 0.
        step_s: Seconds from the first action's start to the last one's end.
        busy_s: Seconds spent computing, recompute included.
        plan_wait_s: Seconds the rank waited for its plan before the step.
        peak_bytes: Largest memory in use during the step; 0 where it is not measured.
        loss: Loss of the step as the whole job sees it; None when not known.
        spans: Its actions in the order they ran.
        replica_index: Its replica of the pipeline, from 0.
        first_start_s: Seconds from the common start of the step to its first action; None when it was not reported.
    """

    rank: int
    stage_index: int
    step_s: float
    busy_s: float
    plan_wait_s: float
    peak_bytes: float
    loss: float | None
    spans: tuple[MeasuredSpan, ...]
    replica_index: int = 0
    first_start_s: float | None = None


def on_one_clock(ranks: Iterable[MeasuredRank], planned: Timeline) -> tuple[MeasuredRank, ...]:
    """Move the spans of all ranks onto one clock, on which the first action of all starts at 0.

    Where a rank does not say when it started, the clock is made from messages: replicas begin a step together, so their
    first stages share a clock. Ranks of neighbouring stages pair up in their order, as they do when they send. Where
    the stage in front has not reported, a rank starts when the plan says.

    Args:
        ranks: Ranks of the plan, spans since each one's first action.
        planned: Replay of the plan.

    Returns:
        The ranks by replica, stage and number, their spans on one clock.
    """
    ranks = list(ranks)
    exact = _by_common_start(ranks)
    return _by_messages(ranks, planned) if exact is None else exact


def _by_common_start(ranks: Sequence[MeasuredRank]) -> tuple[MeasuredRank, ...] | None:
    """Move ranks by the starts that they report; None where one of them does not."""
    starts_s = [(rank, rank.first_start_s) for rank in ranks if rank.first_start_s is not None]
    if len(starts_s) < len(ranks):
        return None
    # A rank without an action has none that could be the first.
    first_s = min((start_s for rank, start_s in starts_s if rank.spans), default=0.0)
    moved = [_moved(rank, start_s - first_s) for rank, start_s in starts_s]
    return tuple(sorted(moved, key=_place_and_number))


def _by_messages(ranks: Sequence[MeasuredRank], planned: Timeline) -> tuple[MeasuredRank, ...]:
    starts_s = {(one.replica_index, one.stage_index): one.spans[0].start_s for one in planned.stages if one.spans}
    stages: dict[tuple[int, int], list[MeasuredRank]] = {}
    for rank in sorted(ranks, key=_place_and_number):
        place = (rank.replica_index, rank.stage_index)
        moved = stages.setdefault(place, [])
        senders = stages.get((rank.replica_index, rank.stage_index - 1))
        if rank.stage_index == 0:
            offset_s = 0.0
        elif senders:
            offset_s = _earliest_start_s(rank.spans, senders[len(moved) % len(senders)].spans)
        else:
            offset_s = starts_s.get(place, 0.0)
        moved.append(_moved(rank, offset_s))
    return tuple(rank for stage in stages.values() for rank in stage)


def _moved(rank: MeasuredRank, offset_s: float) -> MeasuredRank:
    spans = tuple(span._replace(start_s=span.start_s + offset_s, end_s=span.end_s + offset_s) for span in rank.spans)
    return dataclasses.replace(rank, spans=spans)


def _place_and_number(rank: MeasuredRank) -> tuple[int, int, int]:
    return rank.replica_index, rank.stage_index, rank.rank


def measured_s(ranks: Sequence[MeasuredRank]) -> float:
    """Longest step of any rank in seconds; 0 without ranks."""
    return max((rank.step_s for rank in ranks), default=0.0)


def measured_bubble_ratio(ranks: Sequence[MeasuredRank]) -> float | None:
    """Idle share of the longest step, mean over ranks; None where nothing was measured."""
    available_s = measured_s(ranks) * len(ranks)
    return max(0.0, 1 - sum(rank.busy_s for rank in ranks) / available_s) if available_s else None


def _earliest_start_s(spans: Sequence[MeasuredSpan], sender: Sequence[MeasuredSpan]) -> float:
    sent_s = {span.chunk_id: span.end_s for span in sender if span.kind is ActionKind.FORWARD}
    return max(
        (
            sent_s[span.chunk_id] - span.start_s
            for span in spans
            if span.kind is ActionKind.FORWARD and span.chunk_id in sent_s
        ),
        default=0.0,
    )
