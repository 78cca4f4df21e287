"""Held-out data: a corpus of its own, with the tokenizer of the other."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from infinipipe_executor.config import EvaluationConfig, load_config
from infinipipe_executor.data.corpus import open_corpus, open_evaluation_corpus
from infinipipe_executor.errors import DataError
from infinipipe_executor.evaluation import Evaluation
from support_e2e.runs import Sections, write_run
from support_executor.corpora import (
    VOCAB,
    data_config,
    texts,
    token_lists,
    write_jsonl,
    write_megatron,
    write_tokenizer,
)


def test_held_out_data_are_read_with_the_tokenizer_that_was_trained_on_the_others(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "zz" * 50}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"text": "zzzz"}, {"text": ""}])
    config = data_config(tmp_path, corpus, evaluation_corpus=held_out)

    trained_on = open_corpus(config, vocab=257)
    evaluation = open_evaluation_corpus(config, 257, trained_on.tokenizer)

    assert evaluation is not None
    assert token_lists(evaluation) == [[256, 256]]  # 256 is "zz", which only the training data taught
    assert len(trained_on) == 1
    assert str(evaluation.report).startswith(
        "evaluation corpus: JSON lines, text, no end token: 1 documents, 1 skipped (empty); "
    )


def test_held_out_data_may_be_of_another_format(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"prompt": "b", "completion": "c"}])
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    evaluation = open_evaluation_corpus(
        data_config(tmp_path, corpus, evaluation_corpus=held_out, tokenizer=tokenizer), VOCAB, None
    )

    assert evaluation is not None
    assert texts(evaluation, tokenizer) == ["bc</s>"]


@pytest.mark.parametrize("kind", ["input_ids", "Megatron"])
def test_held_out_texts_beside_a_corpus_of_tokens_need_its_tokenizer(tmp_path: Path, kind: str) -> None:
    corpus = write_megatron(tmp_path / "d", [[[1, 2]]])
    if kind == "input_ids":
        corpus = write_jsonl(tmp_path / "train.jsonl", [{"input_ids": [1, 2]}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"text": "ab"}])
    config = data_config(tmp_path, corpus, evaluation_corpus=held_out)

    with pytest.raises(
        DataError,
        match=r"evaluation_corpus: .*held_out\.jsonl needs a tokenizer, and .* holds .*\(\[data\] tokenizer\)",
    ):
        open_evaluation_corpus(config, VOCAB, open_corpus(config, VOCAB).tokenizer)

    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    evaluation = open_evaluation_corpus(config.model_copy(update={"tokenizer": tokenizer}), VOCAB, None)
    assert evaluation is not None
    assert texts(evaluation, tokenizer) == ["ab</s>"]


def test_held_out_tokens_beside_a_corpus_of_tokens_need_no_tokenizer(tmp_path: Path) -> None:
    corpus = write_megatron(tmp_path / "d", [[[1, 2]]])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"input_ids": [3, 4]}])

    evaluation = open_evaluation_corpus(data_config(tmp_path, corpus, evaluation_corpus=held_out), VOCAB, None)

    assert evaluation is not None
    assert token_lists(evaluation) == [[3, 4]]


def test_held_out_data_without_a_target_are_refused_before_training(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"input_ids": [1, 2]}])
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"input_ids": [3]}, {"input_ids": [4]}])

    with pytest.raises(DataError, match=r"none of the held-out tokens has a target: all 2 .* evaluation_corpus"):
        open_evaluation_corpus(data_config(tmp_path, corpus, evaluation_corpus=held_out), VOCAB, None)


def test_a_part_of_the_held_out_data_without_a_target_is_refused_before_training(tmp_path: Path) -> None:
    rows = [{"input_ids": [1]}, {"input_ids": [2]}, {"input_ids": [3]}, {"input_ids": [4, 5]}]
    path = write_jsonl(tmp_path / "held_out.jsonl", rows)
    held_out = open_evaluation_corpus(data_config(tmp_path, path, evaluation_corpus=path), VOCAB, None)
    assert held_out is not None

    with pytest.raises(
        DataError, match=r"none of the first 3 held-out sequences has a target \(\[evaluation\] sequences"
    ):
        Evaluation(EvaluationConfig(every_steps=1, sequences=3), held_out, 2, Mock(), Mock())
    Evaluation(EvaluationConfig(every_steps=1), held_out, 2, Mock(), Mock())


def test_without_held_out_data_there_is_no_corpus(tmp_path: Path) -> None:
    assert open_evaluation_corpus(data_config(tmp_path, tmp_path / "nowhere"), VOCAB, None) is None


def test_what_is_wrong_with_held_out_data_is_said_of_them(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}])
    config = data_config(tmp_path, corpus, evaluation_corpus=tmp_path / "nowhere")

    with pytest.raises(DataError, match=r"\[data\] evaluation_corpus: corpus .*nowhere does not exist"):
        open_evaluation_corpus(config, VOCAB, open_corpus(config, VOCAB).tokenizer)


def test_the_path_of_held_out_data_is_relative_to_the_configuration(tmp_path: Path) -> None:
    changes: Sections = {"data": {"evaluation_corpus": "held_out.jsonl"}, "evaluation": {"every_steps": 10}}

    config = load_config(write_run(tmp_path, changes=changes))

    assert config.data.evaluation_corpus == tmp_path / "held_out.jsonl"
