"""Loss and every gradient equal the reference, over all kinds of chunk and all layouts.

Most chunks have a token count that does not divide by the ranks of a stage; every pipeline has a sequence of 1 token.
"""

import pytest

from infinipipe_contract.plan import Chunk, ChunkKind, chunk_kinds
from support_executor.groups import GroupPool
from support_executor.plans import RecomputeCount, chunk, cut, make_batch, make_plan, uniform, varied
from support_executor.proof import prove
from support_executor.reference import TINY

LENGTHS_TOKENS = [31, 12, 1, 8, 26, 5, 9, 1]
"""Sequences 0 to 3 make the first pipeline, 4 to 7 the second."""

SHAPES: dict[ChunkKind, list[list[Chunk]]] = {
    ChunkKind.BATCHED: [
        [chunk(*cut(0, 31)), chunk(*cut(1, 12), *cut(2, 1)), chunk(*cut(3, 8))],
        [chunk(*cut(4, 26), *cut(5, 5)), chunk(*cut(6, 9)), chunk(*cut(7, 1))],
    ],
    ChunkKind.SPLIT: [
        [*map(chunk, cut(0, 15, 9, 7)), *map(chunk, cut(1, 5, 7)), chunk(*cut(2, 1), *cut(3, 8))],
        [*map(chunk, cut(4, 13, 12, 1)), *map(chunk, cut(6, 1, 8)), chunk(*cut(5, 5), *cut(7, 1))],
    ],
    ChunkKind.HYBRID: [
        [chunk(cut(0, 15, 16)[0]), chunk(cut(0, 15, 16)[1], *cut(2, 1), *cut(3, 8)), chunk(*cut(1, 12))],
        [chunk(cut(4, 13, 13)[0], *cut(6, 9)), chunk(cut(4, 13, 13)[1], *cut(5, 5), *cut(7, 1))],
    ],
}


def recompute_of(name: str, layers_per_stage: int) -> RecomputeCount:
    return {"none": uniform(0), "some": varied(layers_per_stage), "all": uniform(layers_per_stage)}[name]


@pytest.mark.parametrize("sp_size", [1, 2])
@pytest.mark.parametrize("pp_size", [1, 2, 4])
@pytest.mark.parametrize("kind", list(SHAPES), ids=lambda kind: kind.value)
@pytest.mark.parametrize("pipeline_count", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "some", "all"])
def test_loss_and_gradients_equal_one_sequence_at_a_time(
    groups: GroupPool, recompute: str, pipeline_count: int, kind: ChunkKind, pp_size: int, sp_size: int
) -> None:
    shape = SHAPES[kind][:pipeline_count]
    batch = make_batch(LENGTHS_TOKENS[: 4 * pipeline_count])
    plan = make_plan(shape, pp_size, batch, recompute_of(recompute, TINY.layers // pp_size))

    prove(groups, plan, batch, sp_size)

    assert any(kind in chunk_kinds(chunks) for chunks in shape)
