"""Plans by hand: chunks written as text, 1F1B action lists, recompute counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
    plan_digest,
    slices_by_sequence,
)
from infinipipe_executor.data.batch import Batch, make_sequence

RecomputeCount = Callable[[int, int], int]
"""Layers to recompute, from stage and chunk."""


def uniform(layer_count: int) -> RecomputeCount:
    """The same for every chunk on every stage."""

    def count(stage_index: int, chunk_index: int) -> int:
        return layer_count

    return count


def varied(layers_per_stage: int) -> RecomputeCount:
    """From none to all layers, another one for every neighbour."""

    def count(stage_index: int, chunk_index: int) -> int:
        return (stage_index + chunk_index) % (layers_per_stage + 1)

    return count


NO_RECOMPUTE = uniform(0)


def make_batch(lengths_tokens: Sequence[int], *, vocab: int = 97, masked: Sequence[int] = (), seed: int = 3) -> Batch:
    """Random sequences; those whose index is in ``masked`` have no target at all."""
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for index, length in enumerate(lengths_tokens):
        token_ids = torch.randint(0, vocab, (length,), generator=generator)
        mask = torch.full((length,), index not in masked)
        sequences.append(make_sequence(token_ids, mask))
    return Batch(tuple(sequences))


def cut(sequence_index: int, *lengths_tokens: int) -> list[Slice]:
    """Slices of a sequence, one after the other."""
    pieces, start = [], 0
    for length in lengths_tokens:
        pieces.append(Slice(sequence_index, start, length))
        start += length
    return pieces


def one_f_one_b(
    chunks: Sequence[Chunk], stage_count: int, recompute: RecomputeCount = NO_RECOMPUTE
) -> tuple[tuple[Action, ...], ...]:
    """1F1B over slices: forwards in order; the backwards of a sequence's chunks in reverse (paper, Fig. 5 and Eq. 7).

    Chunks that share a sequence, directly or through a third, form a run that is reversed as a whole.
    """
    window_of_run = max(len(run) for run in _runs(chunks))
    stages = []
    for stage_index in range(stage_count):
        warmup = min(len(chunks), stage_count - 1 - stage_index + window_of_run - 1)
        forwards = [Action(ActionKind.FORWARD, i, recompute(stage_index, i)) for i in range(len(chunks))]
        backwards = [Action(ActionKind.BACKWARD, i) for i in backward_order(chunks)]
        actions, forwards = forwards[:warmup], forwards[warmup:]
        while backwards:
            if forwards:
                actions.append(forwards.pop(0))
            actions.append(backwards.pop(0))
        stages.append(tuple(actions))
    return tuple(stages)


def make_plan(
    groups: Sequence[Sequence[Chunk]],
    stage_count: int,
    batch: Batch,
    recompute: RecomputeCount = NO_RECOMPUTE,
    replicas: Sequence[int] | None = None,
) -> ExecutionPlan:
    """One pipeline for each group of chunks, on the replica that is named for it, or all on the first."""
    replicas = [0] * len(groups) if replicas is None else replicas
    plan = ExecutionPlan(
        job="test",
        generation=1,
        step=0,
        policy="by hand",
        pipelines=tuple(
            Pipeline(tuple(chunks), one_f_one_b(chunks, stage_count, recompute), replica_index)
            for chunks, replica_index in zip(groups, replicas, strict=True)
        ),
        target_token_count=batch.target_token_count,
        estimate=Estimate(0.0, 0.0, 0.0, 0.0, ()),
        report=SolveReport(SolveOutcome.OPTIMAL, 0.0, 1),
    )
    return replace(plan, digest=plan_digest(plan))


def chunk(*pieces: Slice) -> Chunk:
    return Chunk(pieces)


def backward_order(chunks: Sequence[Chunk]) -> list[int]:
    """Chunks in the order of their backward passes."""
    return [index for run in _runs(chunks) for index in reversed(run)]


def _runs(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Group neighbouring chunks that sequences tie together."""
    run_of = list(range(len(chunks)))
    for pieces in slices_by_sequence(chunks).values():
        indices = [index for _, index in pieces]
        low, high = min(indices), max(indices)
        first = min(run_of[low : high + 1])
        for index in range(low, high + 1):
            run_of[index] = first
    runs: dict[int, list[int]] = {}
    for index, run in enumerate(run_of):
        runs.setdefault(run, []).append(index)
    return list(runs.values())
