"""Documents in one chunk do not see each other: the output of one does not move when another changes."""

import pytest
import torch

from infinipipe_contract.plan import Chunk
from infinipipe_executor.data.batch import Batch, make_sequence
from support_executor.plans import chunk, cut, make_batch
from support_executor.reference import TINY
from support_executor.single import forward_rows, plain_stage

SHAPES = {
    "batched": [chunk(*cut(0, 9), *cut(1, 14), *cut(2, 3))],
    "split": [chunk(piece) for piece in [*cut(0, 4, 5), *cut(1, 8, 6), *cut(2, 3)]],
    "hybrid": [
        chunk(cut(1, 8, 6)[0], cut(0, 4, 5)[0]),
        chunk(cut(0, 4, 5)[1], *cut(2, 3)),
        chunk(cut(1, 8, 6)[1]),
    ],
    "hybrid, context last": [chunk(cut(1, 8, 6)[0]), chunk(*cut(0, 9), *cut(2, 3), cut(1, 8, 6)[1])],
}


@pytest.mark.parametrize("chunks", list(SHAPES.values()), ids=list(SHAPES))
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_only_the_changed_document_moves(chunks: list[Chunk], changed: int) -> None:
    stage, batch = plain_stage(TINY, 2, 0), make_batch([9, 14, 3])
    other = (batch.sequences[changed].token_ids + 1) % TINY.vocab
    sequences = list(batch.sequences)
    sequences[changed] = make_sequence(other)

    before = forward_rows(stage, chunks, batch)
    after = forward_rows(stage, chunks, Batch(tuple(sequences)))

    for index in range(3):
        assert torch.equal(before[index], after[index]) == (index != changed)


def test_a_token_sees_nothing_behind_it_also_over_a_cut() -> None:
    stage, batch = plain_stage(TINY, 2, 0), make_batch([14])
    token_ids = batch.sequences[0].token_ids.clone()
    token_ids[10] = (token_ids[10] + 1) % TINY.vocab
    chunks = [chunk(piece) for piece in cut(0, 8, 6)]

    before = forward_rows(stage, chunks, batch)[0]
    after = forward_rows(stage, chunks, Batch((make_sequence(token_ids),)))[0]

    assert torch.equal(before[:10], after[:10])
    assert not torch.equal(before[11:], after[11:])
