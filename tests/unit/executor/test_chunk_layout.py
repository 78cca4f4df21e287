"""Tokens, targets and positions of every rank."""

import pytest
import torch

from infinipipe_contract.plan import Chunk, Pipeline
from infinipipe_executor.data.batch import IGNORE_TARGET
from infinipipe_executor.pipeline.chunk_layout import ChunkLayout, lay_out_pipeline
from support_executor.plans import chunk, cut, make_batch


def ranks_of(chunks: list[Chunk], sp_size: int) -> list[tuple[ChunkLayout, ...]]:
    """The layouts of every rank, by chunk."""
    pipeline = Pipeline(tuple(chunks), ())
    return list(zip(*(lay_out_pipeline(pipeline, sp_size, rank) for rank in range(sp_size)), strict=True))


@pytest.mark.parametrize("sp_size", [1, 2, 3, 4])
@pytest.mark.parametrize("length", range(1, 34))
def test_the_shares_of_all_ranks_hold_every_token_once(length: int, sp_size: int) -> None:
    batch = make_batch([length, 5])

    (layouts,) = ranks_of([chunk(*cut(0, length), *cut(1, 5))], sp_size)

    expected = torch.cat([sequence.token_ids for sequence in batch.sequences])
    assert torch.equal(torch.cat([layout.own_token_ids(batch) for layout in layouts]), expected)
    counts = [layout.own_token_count for layout in layouts]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("sp_size", [1, 2, 4])
@pytest.mark.parametrize("tokens", range(1, 8))
def test_targets_do_not_depend_on_where_a_sequence_is_cut(tokens: int, sp_size: int) -> None:
    batch = make_batch([8])
    first, second = cut(0, tokens, 8 - tokens)

    layouts = [layout for of_chunk in ranks_of([chunk(first), chunk(second)], sp_size) for layout in of_chunk]

    token_ids = batch.sequences[0].token_ids
    expected = [*token_ids[1:].tolist(), IGNORE_TARGET]
    assert torch.cat([layout.own_target_ids(batch) for layout in layouts]).tolist() == expected


def test_positions_count_from_the_start_of_the_sequence() -> None:
    first, second = cut(0, 6, 3)

    layouts = ranks_of([chunk(first), chunk(second, *cut(1, 4))], 2)

    assert [layout.own_positions().tolist() for layout in layouts[1]] == [[6, 7, 8, 0], [1, 2, 3]]


def test_slices_know_their_place_in_the_sequence_and_the_chunk() -> None:
    first, second, third = cut(0, 6, 3, 2)

    layouts = ranks_of([chunk(first), chunk(*cut(1, 4), second), chunk(third)], 1)

    placed = [one for (layout,) in layouts for one in layout.slices]
    assert [(p.slice_index, p.slice_count, p.rows.start, p.rows.stop) for p in placed] == [
        (0, 3, 0, 6),
        (0, 1, 0, 4),
        (1, 3, 4, 7),
        (2, 3, 0, 2),
    ]
