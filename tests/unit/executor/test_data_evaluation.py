"""Held-out data: a corpus of its own, with the tokenizer of the other."""

from pathlib import Path

import pytest

from infinipipe_executor.config import load_config
from infinipipe_executor.data.corpus import open_corpus, open_evaluation_corpus
from infinipipe_executor.errors import DataError
from support_e2e.runs import Sections, write_run
from support_executor.corpora import VOCAB, data_config, texts, token_lists, write_jsonl, write_tokenizer


def test_held_out_data_are_read_with_the_tokenizer_that_was_trained_on_the_others(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "zz" * 50}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"text": "zzzz"}, {"text": ""}])
    config = data_config(tmp_path, corpus, evaluation_corpus=held_out)

    evaluation = open_evaluation_corpus(config, vocab=257)

    assert evaluation is not None
    assert token_lists(evaluation) == [[256, 256]]  # 256 is "zz", which only the training data taught
    assert len(open_corpus(config, vocab=257)) == 1
    assert str(evaluation.report).startswith(
        "evaluation corpus: JSON lines, text, no end token: 1 documents, 1 skipped (empty); "
    )


def test_held_out_data_may_be_of_another_format(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"prompt": "b", "completion": "c"}])
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    evaluation = open_evaluation_corpus(
        data_config(tmp_path, corpus, evaluation_corpus=held_out, tokenizer=tokenizer), VOCAB
    )

    assert evaluation is not None
    assert texts(evaluation, tokenizer) == ["bc</s>"]


def test_without_held_out_data_there_is_no_corpus(tmp_path: Path) -> None:
    assert open_evaluation_corpus(data_config(tmp_path, tmp_path / "nowhere"), VOCAB) is None


def test_what_is_wrong_with_held_out_data_is_said_of_them(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}])
    config = data_config(tmp_path, corpus, evaluation_corpus=tmp_path / "nowhere")

    with pytest.raises(DataError, match=r"\[data\] evaluation_corpus: corpus .*nowhere does not exist"):
        open_evaluation_corpus(config, VOCAB)


def test_the_path_of_held_out_data_is_relative_to_the_configuration(tmp_path: Path) -> None:
    changes: Sections = {"data": {"evaluation_corpus": "held_out.jsonl"}, "evaluation": {"every_steps": 10}}

    config = load_config(write_run(tmp_path, changes=changes))

    assert config.data.evaluation_corpus == tmp_path / "held_out.jsonl"
