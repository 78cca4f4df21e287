"""Plans in a drawn order: stages that run ahead as far as they may, or not at all."""

import dataclasses
import random
from collections.abc import Sequence
from itertools import pairwise

from infinipipe_contract.plan import Action, ActionKind, Chunk, ExecutionPlan, plan_digest
from infinipipe_executor.data.batch import Batch
from support_executor.plans import backward_order, chunk, cut, make_batch, make_plan
from support_executor.reference import TINY


def draw_plan(seed: int, stage_count: int) -> tuple[ExecutionPlan, Batch]:
    """Draw a small batch, cut and pack it, and run its chunks in one or two pipelines in a legal order of any kind."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 14) for _ in range(generator.randint(2, 5))]
    groups: list[list[Chunk]] = [[] for _ in range(generator.randint(1, 2))]
    for index, length in enumerate(lengths):
        chunks = generator.choice(groups)
        count = generator.randint(1, min(3, length))
        bounds = [0, *sorted(generator.sample(range(1, length), count - 1)), length]
        pieces = cut(index, *(end - start for start, end in pairwise(bounds)))
        if chunks and generator.random() < 0.4:  # behind the slices of another sequence
            chunks[-1] = chunk(*chunks[-1].slices, pieces.pop(0))
        chunks += map(chunk, pieces)
    batch = make_batch(lengths)
    plan = make_plan([chunks for chunks in groups if chunks], stage_count, batch)
    return shuffle(plan, generator), batch


def shuffle(plan: ExecutionPlan, generator: random.Random) -> ExecutionPlan:
    """Interleave the forwards and backwards of every pipeline at random; no stage ever waits for another for ever."""
    pipelines = tuple(
        dataclasses.replace(pipeline, stages=_interleave(pipeline.chunks, plan.stage_count, generator))
        for pipeline in plan.pipelines
    )
    shuffled = dataclasses.replace(plan, pipelines=pipelines)
    return dataclasses.replace(shuffled, digest=plan_digest(shuffled))


def _interleave(chunks: Sequence[Chunk], stage_count: int, generator: random.Random) -> tuple[tuple[Action, ...], ...]:
    """Play the stages: again and again one that could go on is drawn, and does what it could do next."""
    count, backwards = len(chunks), backward_order(chunks)
    actions: list[list[Action]] = [[] for _ in range(stage_count)]
    forward_count, backward_count = [0] * stage_count, [0] * stage_count
    while min(backward_count) < count:
        possible = []
        for p in range(stage_count):
            before = count if p == 0 else forward_count[p - 1]
            behind = count if p == stage_count - 1 else backward_count[p + 1]
            if forward_count[p] < before:
                possible.append((p, ActionKind.FORWARD))
            if backward_count[p] < behind and backwards[backward_count[p]] < forward_count[p]:
                # The order of the backward passes sees to it that later slices went first.
                possible.append((p, ActionKind.BACKWARD))
        p, kind = generator.choice(possible)
        if kind is ActionKind.FORWARD:
            actions[p].append(Action(kind, forward_count[p], generator.randrange(3) % (TINY.layers // stage_count + 1)))
            forward_count[p] += 1
        else:
            actions[p].append(Action(kind, backwards[backward_count[p]]))
            backward_count[p] += 1
    return tuple(map(tuple, actions))
