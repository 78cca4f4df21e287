"""Every format of training data: found by what is there, read to the right tokens and targets, refused by name."""

import codecs
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import DataError
from support_executor.corpora import (
    END,
    VOCAB,
    data_config,
    learnt_texts,
    target_lists,
    texts,
    token_lists,
    write_jsonl,
    write_tokenizer,
)

ROWS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": "alpha"}, {"text": "beta"}, {"text": "gamma"}],
    "prompt": [
        {"prompt": "a?", "completion": " b"},
        {"prompt": "", "completion": "c"},
        {"prompt": "d", "completion": "e"},
    ],
    "messages": [
        {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]},
        {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}] * 2},
    ],
    "input_ids": [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [7], "labels": [7]},
        {"input_ids": [8, 9], "labels": [8, 9]},
    ],
}
TEXTS = {
    "text": [f"alpha{END}", f"beta{END}", f"gamma{END}"],
    "prompt": [f"a? b{END}", f"c{END}", f"de{END}"],
    "messages": [
        "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n",
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n" * 2,
    ],
}
LEARNT = {
    "text": [f"lpha{END}", f"eta{END}", f"amma{END}"],
    "prompt": [f" b{END}", END, f"e{END}"],
    "messages": ["b<|im_end|>\n", "d<|im_end|>\nd<|im_end|>\n"],
}


def write_parquet(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=2)
    return path


def write_dataset(path: Path, rows: Sequence[Any]) -> Path:
    datasets.Dataset.from_list(list(rows)).save_to_disk(path, num_shards=2 if len(rows) > 1 else 1)
    return path


def write_folder(path: Path, rows: Sequence[Any]) -> Path:
    write_jsonl(path / "0.jsonl", rows[:1])
    write_jsonl(path / "deeper" / "1.jsonl.gz", rows[1:])
    return path


def write_parquet_folder(path: Path, rows: Sequence[Any]) -> Path:
    write_parquet(path / "0.parquet", rows[:1])
    write_parquet(path / "1.parquet", rows[1:])
    return path


CONTAINERS: dict[str, tuple[str, str, Callable[[Path, Sequence[Any]], Path]]] = {
    "lines": ("data.jsonl", "JSON lines", write_jsonl),
    "packed lines": ("data.jsonl.gz", "JSON lines", write_jsonl),
    "folder of lines": ("lines", "JSON lines", write_folder),
    "parquet": ("data.parquet", "Parquet", write_parquet),
    "folder of parquet": ("parquet", "Parquet", write_parquet_folder),
    "dataset": ("dataset", "dataset on disk", write_dataset),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_every_format_in_every_kind_of_file_become_the_same_tokens_and_targets(
    tmp_path: Path, container: str, name: str
) -> None:
    file, kind, write = CONTAINERS[container]
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    corpus = open_corpus(data_config(tmp_path, write(tmp_path / file, ROWS[name]), tokenizer=tokenizer), VOCAB)

    assert texts(corpus, tokenizer) == TEXTS[name]
    assert learnt_texts(corpus, tokenizer) == LEARNT[name]
    marks = "marked by the chat template" if name == "messages" else "each ends with </s>"
    assert str(corpus.report).startswith(f"corpus: {kind}, {name}, {marks}: {len(corpus)} documents, 0 skipped; ")


@pytest.mark.parametrize("container", CONTAINERS)
def test_tokens_in_every_kind_of_file_are_taken_as_they_are_without_a_tokenizer(tmp_path: Path, container: str) -> None:
    file, kind, write = CONTAINERS[container]

    corpus = open_corpus(data_config(tmp_path, write(tmp_path / file, ROWS["input_ids"])), VOCAB)

    assert token_lists(corpus) == [[1, 2, 3], [8, 9]]  # [7] alone has no target
    assert target_lists(corpus) == [[2, 3, -100], [9, -100]]
    assert str(corpus.report).startswith(f"corpus: {kind}, input_ids: 3 documents, 0 skipped; ")
    assert str(corpus.report).endswith("3 tokens are targets; 1 sequences without a target left out (1 tokens)")


def test_a_loss_mask_says_which_tokens_are_targets(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 0]}])

    assert target_lists(open_corpus(data_config(tmp_path, path), VOCAB)) == [[-100, 7, -100, -100]]


def test_tokens_without_any_mask_are_all_targets_and_no_mask_is_stored(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9], "labels": [7, 8, 9]}])

    assert target_lists(open_corpus(data_config(tmp_path, path), VOCAB)) == [[6, -100], [8, 9, -100]]
    assert not list(tmp_path.rglob("learnt.bin"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": []}, "empty"),
        ({"input_ids": [1.5]}, '"input_ids" is not a list of token ids'),
        ({"input_ids": [2**31]}, '"input_ids" is not a list of token ids'),
        ({"input_ids": "1 2"}, '"input_ids" is not a list of token ids'),
        ({"input_ids": [3, -1]}, '"input_ids" holds a negative id'),
        ({"input_ids": [3, 4], "loss_mask": [1]}, '"loss_mask" and "input_ids" differ in length'),
        ({"input_ids": [3, 4], "loss_mask": [1, 2]}, '"loss_mask" holds more than 0 and 1'),
        ({"input_ids": [3, 4], "labels": [[3], [4, 5]]}, '"labels" is not a list of integers'),
        ({"input_ids": None}, '"input_ids" is null'),
    ],
)
def test_lists_that_are_no_tokens_are_skipped_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: object, reason: str
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"input_ids": [1, 2]}, row])

    with caplog.at_level(logging.INFO):
        corpus = open_corpus(data_config(tmp_path, path), VOCAB)

    assert corpus.report.skipped == {reason: 1}
    assert f"d.jsonl:2: skipped, {reason}" in caplog.text


def test_labels_that_were_shifted_already_end_the_run_with_file_line_and_token(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "d.jsonl", [{"input_ids": [1], "labels": [1]}, {"input_ids": [1, 2], "labels": [2, 0]}]
    )

    with pytest.raises(DataError, match=r'd\.jsonl:2: "labels" must repeat .* at token 0 it is 2 where the token is 1'):
        open_corpus(data_config(tmp_path, path), VOCAB)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"text": "a", "messages": [{"role": "user", "content": "b"}]}], "text, messages"),
        ([{"text": None, "other": 1}, {"text": "a", "input_ids": [1]}], "text, input_ids"),
    ],
)
def test_columns_of_several_formats_are_refused_until_the_format_is_said(
    tmp_path: Path, rows: list[Any], found: str
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", rows)

    with pytest.raises(DataError, match=rf"d\.jsonl has columns of several formats: {found}; .*\(\[data\] format\)"):
        open_corpus(data_config(tmp_path, path), VOCAB)
    assert len(open_corpus(data_config(tmp_path, path, format="text"), VOCAB)) == 1


def test_files_of_several_formats_are_refused_by_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d" / "a.jsonl", ROWS["text"])
    write_jsonl(tmp_path / "d" / "b.jsonl", ROWS["input_ids"])

    with pytest.raises(DataError, match=r"several formats: text in a\.jsonl, input_ids in b\.jsonl"):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)


def test_files_of_several_kinds_are_refused_until_the_pattern_is_said(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d" / "a.jsonl", [{"text": "lines"}])
    (tmp_path / "d" / "b.py").write_text("python")

    with pytest.raises(DataError, match=r"several kinds \(1 other, 1 \.jsonl\): .*\(\[data\] pattern\)"):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)
    for pattern, kind in (("*.jsonl", "JSON lines"), ("*.py", "whole files")):
        assert kind in str(open_corpus(data_config(tmp_path, tmp_path / "d", pattern=pattern), VOCAB).report)


def test_a_file_of_no_known_kind_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text\na\n")

    with pytest.raises(DataError, match=r"d\.csv is neither a folder nor a file of a known kind: \.jsonl, .*\.parquet"):
        open_corpus(data_config(tmp_path, tmp_path / "d.csv"), VOCAB)


def test_a_file_without_the_column_lists_those_it_has(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "d.parquet", [{"content": "a", "n": 1}])

    with pytest.raises(DataError, match=r'd\.parquet has no column "text", only content, n \(\[data\] format\)'):
        open_corpus(data_config(tmp_path, path), VOCAB)


def test_a_dataset_of_several_parts_asks_for_one_and_one_of_them_is_read(tmp_path: Path) -> None:
    parts: Any = {
        "train": datasets.Dataset.from_list(ROWS["text"]),
        "test": datasets.Dataset.from_list(ROWS["text"][:1]),
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")

    with pytest.raises(DataError, match=r'holds 2 datasets, train, test: .*corpus = ".*/d/train"'):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)
    assert len(open_corpus(data_config(tmp_path, tmp_path / "d" / "test"), VOCAB)) == 1


def test_a_dataset_of_a_single_part_is_read(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS["text"])}).save_to_disk(tmp_path / "d")

    assert len(open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)) == 3


@pytest.mark.parametrize("container", ["packed lines", "parquet", "dataset"])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, container: str) -> None:
    file, _, write = CONTAINERS[container]
    path = write(tmp_path / file, ROWS["text"])
    (cut, *_) = sorted(path.rglob("*.arrow")) if path.is_dir() else [path]
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])

    with pytest.raises(DataError, match=rf"corpus .*{cut.name} (cannot be read|is damaged)"):
        open_corpus(data_config(tmp_path, path), VOCAB)


def test_nulls_in_parquet_are_skipped_with_file_and_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_parquet(tmp_path / "d.parquet", [{"text": None}] * 3 + [{"text": "a"}, {"text": ""}])

    with caplog.at_level(logging.INFO):
        corpus = open_corpus(data_config(tmp_path, path), VOCAB)

    assert corpus.report.skipped == {'"text" is null': 3, "empty": 1}
    assert "d.parquet:3: skipped" in caplog.text
    assert "d.parquet:5: skipped, empty" in caplog.text


def test_lines_that_break_readers_of_columns_are_read_or_skipped_one_by_one(tmp_path: Path) -> None:
    filler = "x" * 2**26
    lines = [
        codecs.BOM_UTF8 + b'{"text": null, "extra": null}\r\n',
        b'{"text": "windows", "extra": {"deep": [{"er": 1}]}}\r\n',
        b"\r\n",
        b'{"text": "mixed", "extra": "now a text"}\n',
        b'{"text": "bad \xff byte"}\n',
        f'{{"extra": "{filler}", "text": "behind 64 MiB"}}\n'.encode(),
        b'{"text": "the last line has no end"}',
    ]
    (tmp_path / "d.jsonl").write_bytes(b"".join(lines))
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    corpus = open_corpus(data_config(tmp_path, tmp_path / "d.jsonl", tokenizer=tokenizer, end_token=""), VOCAB)

    assert texts(corpus, tokenizer) == ["windows", "mixed", "behind 64 MiB", "the last line has no end"]
    assert corpus.report.skipped == {'"text" is null': 1, "blank line": 1, "not UTF-8": 1}


@pytest.mark.parametrize(
    ("end_token", "adds_begin", "spelled", "told"),
    [
        (None, False, "a</s>", "each ends with </s>"),
        ("", False, "a", "no end token"),
        ("<|im_end|>", False, "a<|im_end|>", "each ends with <|im_end|>"),
        (None, True, "<s>a</s>", "each ends with </s>, the tokenizer adds <s>"),
    ],
)
def test_a_text_begins_as_the_tokenizer_says_and_ends_with_the_end_token(
    tmp_path: Path, end_token: str | None, adds_begin: bool, spelled: str, told: str
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": "a"}])
    tokenizer = write_tokenizer(tmp_path / "tokenizer", adds_begin=adds_begin)

    corpus = open_corpus(data_config(tmp_path, path, tokenizer=tokenizer, end_token=end_token), VOCAB)

    assert texts(corpus, tokenizer) == [spelled]
    assert told in str(corpus.report)


def test_an_end_token_that_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": "a"}])

    with pytest.raises(DataError, match=r"no token '<eod>' to end documents with \(\[data\] end_token\)"):
        open_corpus(data_config(tmp_path, path, end_token="<eod>"), VOCAB)


def test_a_changed_file_beside_the_tokenizer_makes_new_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", [{"text": "a"}])
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    config = data_config(tmp_path, path, tokenizer=tokenizer)
    before = texts(open_corpus(config, VOCAB), tokenizer)
    (tokenizer.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))

    assert (before, texts(open_corpus(config, VOCAB), tokenizer)) == (["a</s>"], ["a<|im_end|>"])
