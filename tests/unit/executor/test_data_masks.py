"""Where only some tokens are learnt: the mask is kept through cut and cache, and what has no target is counted."""

from pathlib import Path

import numpy as np
import pytest

from infinipipe_executor.data import learnt
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.learnt import count_targets
from infinipipe_executor.errors import DataError
from support_executor.corpora import VOCAB, data_config, target_lists, token_lists, write_jsonl

# Lengths 6, 3 and 5; learnt are the last three, the middle one, and the last two.
ROWS = [
    {"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 1, 1, 1]},
    {"input_ids": [7, 8, 9], "loss_mask": [0, 1, 0]},
    {"input_ids": [10, 11, 12, 13, 14], "loss_mask": [1, 0, 0, 1, 1]},
]


@pytest.mark.parametrize(
    ("policy", "context_tokens", "targets", "told"),
    [
        (
            "truncate",
            4,
            [[-100, -100, 4, -100], [8, -100, -100], [-100, -100, 13, -100]],
            "2 longer than 4 tokens, truncated; 3 sequences, 11 tokens kept, 3 lost (21.4%); "
            "3 tokens are targets; 0 sequences without a target left out (0 tokens)",
        ),
        (
            "truncate",
            3,
            [[8, -100, -100]],
            "2 longer than 3 tokens, truncated; 3 sequences, 9 tokens kept, 5 lost (35.7%); "
            "1 tokens are targets; 2 sequences without a target left out (6 tokens)",
        ),
        (
            "split",
            3,
            [[5, 6, -100], [8, -100, -100], [14, -100]],
            "2 longer than 3 tokens, split; 5 sequences, 14 tokens kept, 0 lost (0.0%); "
            "4 tokens are targets; 2 sequences without a target left out (6 tokens)",
        ),
        (
            "drop",
            3,
            [[8, -100, -100]],
            "2 longer than 3 tokens, dropped; 1 sequences, 3 tokens kept, 11 lost (78.6%); "
            "1 tokens are targets; 0 sequences without a target left out (0 tokens)",
        ),
    ],
)
def test_what_a_cut_leaves_without_a_target_is_left_out_and_counted(
    tmp_path: Path, policy: str, context_tokens: int, targets: list[list[int]], told: str
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", ROWS)
    config = data_config(tmp_path, path, beyond_context=policy, context_tokens=context_tokens)

    corpus = open_corpus(config, VOCAB)

    assert target_lists(corpus) == targets
    assert str(corpus.report) == f"corpus: JSON lines, input_ids: 3 documents, 0 skipped; {told}"
    assert target_lists(open_corpus(config, VOCAB)) == targets  # from the cache


def test_a_corpus_of_which_nothing_is_learnt_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [ROWS[0]] * 2)

    with pytest.raises(DataError, match=r"none of 2 has a token to learn within its first 3 \(\[data\] context_tokens"):
        open_corpus(data_config(tmp_path, path, context_tokens=3), VOCAB)


def test_a_document_before_the_first_masked_one_is_learnt_whole(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [1, 2, 3]}, ROWS[1]])

    corpus = open_corpus(data_config(tmp_path, path), VOCAB)

    assert token_lists(corpus) == [[1, 2, 3], [7, 8, 9]]
    assert target_lists(corpus) == [[2, 3, -100], [8, -100, -100]]


@pytest.mark.parametrize("scan_tokens", [1, 7, 1000])
def test_targets_are_counted_the_same_however_many_tokens_are_looked_at_in_one_go(
    monkeypatch: pytest.MonkeyPatch, scan_tokens: int
) -> None:
    monkeypatch.setattr(learnt, "SCAN_TOKENS", scan_tokens)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 50)
    gaps = rng.integers(0, 3, 50)
    starts = np.cumsum(lengths + gaps) - lengths
    mask = rng.random(int(starts[-1] + lengths[-1])) < 0.4

    counts = count_targets(mask, starts, lengths)

    expected = [int(mask[start + 1 : start + length].sum()) for start, length in zip(starts, lengths, strict=True)]
    assert counts.tolist() == expected
