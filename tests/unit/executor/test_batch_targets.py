"""Targets of documents and batches."""

import pytest
import torch

from infinipipe_executor.data.batch import IGNORE_TARGET, Batch, make_sequence


def test_the_target_is_the_next_token_and_the_last_token_has_none() -> None:
    sequence = make_sequence(torch.tensor([5, 6, 7]))

    assert sequence.target_ids.tolist() == [6, 7, IGNORE_TARGET]


def test_a_masked_token_is_no_target_but_still_an_input() -> None:
    sequence = make_sequence(torch.tensor([5, 6, 7, 8]), torch.tensor([True, False, True, True]))

    assert sequence.token_ids.tolist() == [5, 6, 7, 8]
    assert sequence.target_ids.tolist() == [IGNORE_TARGET, 7, 8, IGNORE_TARGET]


def test_targets_are_counted_over_all_documents() -> None:
    batch = Batch(tuple(make_sequence(torch.arange(length)) for length in (1, 3, 8)))

    assert batch.lengths_tokens == (1, 3, 8)
    assert batch.target_token_count == 0 + 2 + 7


def test_the_digest_tells_ids_targets_and_boundaries_apart() -> None:
    ids = torch.arange(6)
    batches = [
        Batch((make_sequence(ids),)),
        Batch((make_sequence(ids[:4]), make_sequence(ids[4:]))),
        Batch((make_sequence(ids[:2]), make_sequence(ids[2:]))),
        Batch((make_sequence(ids, ids > 2),)),
        Batch((make_sequence(ids.flip(0)),)),
    ]

    assert len({batch.digest() for batch in batches}) == len(batches)
    assert Batch((make_sequence(ids.clone()),)).digest() == batches[0].digest()


@pytest.mark.parametrize(
    ("token_ids", "mask"),
    [
        (torch.empty(0, dtype=torch.int64), None),
        (torch.zeros(3), None),
        (torch.zeros(2, 2, dtype=torch.int64), None),
        (torch.zeros(3, dtype=torch.int64), torch.ones(2, dtype=torch.bool)),
    ],
    ids=["empty", "float", "two dimensions", "mask of another length"],
)
def test_refuses_tokens_that_make_no_sequence(token_ids: torch.Tensor, mask: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="token_ids"):
        make_sequence(token_ids, mask)
