"""From files to token sequences: real files, a real tokenizer, and every refusal."""

import fcntl
import json
import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tokenizers import Tokenizer

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data import token_cache
from infinipipe_executor.data.batch import IGNORE_TARGET
from infinipipe_executor.data.corpus import Corpus, open_corpus
from infinipipe_executor.data.documents import SHOWN_SKIPS, SkippedDocuments, read_documents
from infinipipe_executor.data.megatron import MegatronSource
from infinipipe_executor.data.prepare import write_tokens
from infinipipe_executor.data.row_formats import TextRows
from infinipipe_executor.data.sources import find_source
from infinipipe_executor.data.tokenizer import read_tokenizer, train_tokenizer
from infinipipe_executor.errors import DataError

TEXTS = ["def add(a, b):\n    return a + b\n" * 4, "x = 1\n", "class A:\n    pass\n" * 3]


def write_tree(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    for index, text in enumerate(texts):
        (folder / f"{index}.py").write_text(text)
    return folder


def data_config(tmp_path: Path, corpus: Path, **changes: object) -> DataConfig:
    values: dict[str, object] = {
        "corpus": corpus,
        "cache": tmp_path / "cache",
        "context_tokens": 4096,
        "beyond_context": "truncate",
        "sequences_per_batch": 2,
    }
    return DataConfig.model_validate(values | changes)


def read_texts(corpus: Path, skipped: SkippedDocuments) -> list[tuple[str, int, object]]:
    """Read documents of texts as (file, line, text)."""
    source = find_source(corpus, None, ())
    assert not isinstance(source, MegatronSource)
    return [
        (source.files[file_index], number, content)
        for file_index, number, content in read_documents(source, TextRows(), skipped)
    ]


def decode(tmp_path: Path, corpus: Corpus) -> list[str]:
    (path,) = (tmp_path / "cache").glob("tokens-*/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    return [tokenizer.decode(corpus.sequence(index).token_ids.tolist()) for index in range(len(corpus))]


def test_every_file_of_a_tree_becomes_one_sequence_and_its_tokens_spell_it(tmp_path: Path) -> None:
    corpus = open_corpus(data_config(tmp_path, write_tree(tmp_path / "t", TEXTS)), vocab=300)

    assert decode(tmp_path, corpus) == TEXTS


def test_targets_are_the_next_tokens_and_the_last_token_has_none(tmp_path: Path) -> None:
    corpus = open_corpus(data_config(tmp_path, write_tree(tmp_path / "t", TEXTS)), vocab=300)

    sequence = corpus.sequence(0)

    assert torch.equal(sequence.target_ids[:-1], sequence.token_ids[1:])
    assert sequence.target_ids[-1] == IGNORE_TARGET


def test_empty_and_undecodable_files_and_excluded_folders_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = write_tree(tmp_path / "t", [*TEXTS, "", "\n\n"])
    (tree / "latin.py").write_bytes(b"# caf\xe9\n")
    (tree / "site-packages").mkdir()
    (tree / "site-packages" / "other.py").write_text("y = 2\n")
    (tree / "readme.txt").write_text("not asked for")

    with caplog.at_level(logging.INFO):
        corpus = open_corpus(data_config(tmp_path, tree, exclude=("site-packages",)), vocab=300)

    assert len(corpus) == 3
    assert corpus.report.skipped == {"empty": 2, "not UTF-8": 1}
    assert "3 documents, 2 skipped (empty), 1 skipped (not UTF-8)" in str(corpus.report)
    assert "latin.py: skipped, not UTF-8" in caplog.text


def test_a_link_to_a_folder_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write_tree(tmp_path / "t", TEXTS))

    assert len(open_corpus(data_config(tmp_path, tmp_path / "link"), vocab=300)) == 3


def test_jsonl_lines_without_text_are_skipped_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [
        '{"text": ""}',
        '{"text": "alpha"}',
        '{"text": null}',
        '{"other": "beta"}',
        "",
        '{"text": 5}',
        '{"text": "ga',
        '"text"',
        json.dumps({"text": "delta\r\nepsilon", "source": "somewhere"}),
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\ufeff" + "\n".join(lines))
    skipped = SkippedDocuments()

    with caplog.at_level(logging.INFO):
        documents = read_texts(path, skipped)

    assert documents == [("corpus.jsonl", 2, "alpha"), ("corpus.jsonl", 9, "delta\r\nepsilon")]
    assert skipped.count_by_reason == {
        "empty": 1,
        '"text" is null': 1,
        'no "text"': 2,
        "blank line": 1,
        '"text" is a int': 1,
        "not JSON": 1,
    }
    for words in ("corpus.jsonl:1: skipped, empty", 'corpus.jsonl:3: skipped, "text" is null'):
        assert words in caplog.text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "abc \\ud800 def"}', "not valid Unicode"),
        ("[" * 200_000, "not JSON"),
        ('{"text": "alpha", "n": ' + "9" * 5000 + "}", "not JSON"),
        ('{"text": "alpha"}}', "not JSON"),
        ("\udcff", "not UTF-8"),
    ],
    ids=["surrogate", "deep", "long number", "brace", "bytes"],
)
def test_lines_that_real_corpora_hold_are_skipped_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, reason: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(f'{{"text": "good"}}\n{line}\n{{"text": "better"}}\n'.encode("utf-8", "surrogateescape"))

    with caplog.at_level(logging.INFO):
        corpus = open_corpus(data_config(tmp_path, path), vocab=300)

    assert decode(tmp_path, corpus) == ["good", "better"]
    assert corpus.report.skipped == {reason: 1}
    assert f"corpus.jsonl:2: skipped, {reason}" in caplog.text


def test_a_file_whose_name_is_not_valid_unicode_is_read_like_any_other(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "t", [TEXTS[0]])
    (tree / os.fsdecode(b"caf\xe9.py")).write_text(TEXTS[1])
    (tree / os.fsdecode(b"th\xe9.py")).write_text("")
    skipped = SkippedDocuments()

    documents = read_texts(tree, skipped)

    assert documents == [("0.py", 0, TEXTS[0]), (os.fsdecode(b"caf\xe9.py"), 0, TEXTS[1])]
    assert len(open_corpus(data_config(tmp_path, tree), vocab=300)) == 2


def test_a_corpus_that_cannot_be_opened_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "alpha"}\n')

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"corpus\.jsonl cannot be read: Permission denied \(\[data\] corpus\)"):
        read_texts(path, SkippedDocuments())


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all files look as if they had changed long ago."""
    monkeypatch.setattr(token_cache, "SETTLED_S", -1.0)


def test_tokens_are_found_again_without_a_look_into_the_texts_and_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_tree(tmp_path / "t", [*TEXTS, ""])
    config = data_config(tmp_path, tree)
    settle(monkeypatch)
    first = open_corpus(config, vocab=300)

    monkeypatch.setattr(token_cache, "_file_digest", lambda *_: pytest.fail("the corpus was read"))
    with (tmp_path / "cache" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # would be waited for
        again = open_corpus(config, vocab=300)

    assert str(again.report) == str(first.report)
    assert again.report.skipped == {"empty": 1}
    assert decode(tmp_path, again) == TEXTS


@pytest.mark.parametrize("change", ["text", "new file", "vocabulary"])
def test_a_changed_corpus_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    tree = write_tree(tmp_path / "t", TEXTS)
    settle(monkeypatch)
    open_corpus(data_config(tmp_path, tree), vocab=300)
    before = (tree / "1.py").stat()

    if change == "text":  # of the same size, and with the old time of modification
        (tree / "1.py").write_text("y = 2\n")
        os.utime(tree / "1.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "new file":
        (tree / "3.py").write_text("z = 3\n")
    write = Mock(wraps=write_tokens)
    monkeypatch.setattr(token_cache, "write_tokens", write)
    open_corpus(data_config(tmp_path, tree), vocab=290 if change == "vocabulary" else 300)

    assert write.call_count == 1


def test_a_file_that_changed_a_moment_ago_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = data_config(tmp_path, write_tree(tmp_path / "t", TEXTS))
    monkeypatch.setattr(token_cache, "SETTLED_S", 3600.0)
    open_corpus(config, vocab=300)

    assert not list((tmp_path / "cache").glob("note-*"))


def test_a_corpus_that_changes_while_it_is_read_leaves_no_tokens_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_tree(tmp_path / "t", TEXTS)

    def write_beside_another(*arguments: Any) -> None:
        (tree / "1.py").write_text("another = 1\n")
        write_tokens(*arguments)

    monkeypatch.setattr(token_cache, "write_tokens", write_beside_another)
    with pytest.raises(DataError, match=r"/t changed while it was read; start again \(\[data\] corpus\)"):
        open_corpus(data_config(tmp_path, tree), vocab=300)

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_a_damaged_cache_says_what_to_delete(tmp_path: Path) -> None:
    config = data_config(tmp_path, write_tree(tmp_path / "t", TEXTS))
    open_corpus(config, vocab=300)
    (index,) = (tmp_path / "cache").glob("tokens-*/index.json")
    index.write_text("{")

    with pytest.raises(DataError, match=r"cache/tokens-\w+ is damaged: .*; delete it"):
        open_corpus(config, vocab=300)


def test_the_report_of_a_jsonl_corpus_counts_what_was_skipped(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": ""}\n{"text": "alpha"}\n{"text": null}\n')

    corpus = open_corpus(data_config(tmp_path, path), vocab=300)

    assert len(corpus) == 1
    assert '1 documents, 1 skipped (empty), 1 skipped ("text" is null)' in str(corpus.report)


def test_many_skipped_documents_are_shown_a_few_times_and_then_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedDocuments()

    with caplog.at_level(logging.INFO):
        for index in range(100):
            skipped.add("empty", f"file{index}")

    assert skipped.count_by_reason == {"empty": 100}
    assert len(caplog.records) == SHOWN_SKIPS


def test_training_a_tokenizer_twice_gives_the_same_one() -> None:
    assert train_tokenizer(TEXTS, 300).to_str() == train_tokenizer(TEXTS, 300).to_str()


def test_the_tokens_are_made_once_and_again_only_when_the_texts_or_the_vocabulary_change(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "t", TEXTS)
    config = data_config(tmp_path, tree)

    def folders() -> set[str]:
        return {path.name for path in (tmp_path / "cache").glob("tokens-*")}

    open_corpus(config, vocab=300)
    first = folders()
    (made,) = (tmp_path / "cache" / name / "token_ids.bin" for name in first)
    made_ns = made.stat().st_mtime_ns
    open_corpus(config, vocab=300)
    assert folders() == first
    assert made.stat().st_mtime_ns == made_ns

    (tree / "0.py").write_text("changed = True\n")
    open_corpus(config, vocab=300)
    assert len(folders()) == 2
    open_corpus(config, vocab=290)
    assert len(folders()) == 3


def test_a_given_tokenizer_is_used(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train_tokenizer(["zz" * 50], 257).save(str(path))

    corpus = open_corpus(data_config(tmp_path, write_tree(tmp_path / "t", ["zzzz"]), tokenizer=path), vocab=257)

    assert corpus.sequence(0).token_ids.tolist() == [256, 256]


@pytest.mark.parametrize("is_masked", [False, True], ids=["text", "prompt"])
def test_truncation_and_padding_of_a_given_tokenizer_neither_lose_nor_invent_tokens(
    tmp_path: Path, is_masked: bool
) -> None:
    tokenizer = train_tokenizer(["zz" * 50], 257)
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=4, pad_id=0)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    rows = [
        {"prompt": text[:1], "completion": text[1:]} if is_masked else {"text": text} for text in ("zz" * 2, "zz" * 9)
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    opened = open_corpus(data_config(tmp_path, corpus, tokenizer=path), vocab=257)

    assert [opened.sequence(index).token_ids.tolist() for index in range(len(opened))] == [[256] * 2, [256] * 9]


def test_sequences_of_one_token_are_kept_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f'{{"input_ids": {ids}}}\n' for ids in ([1, 2, 3, 4, 5], [6], [7, 8])))

    corpus = open_corpus(data_config(tmp_path, path, context_tokens=2, beyond_context="split"), vocab=300)

    assert [corpus.sequence(index).token_ids.tolist() for index in range(len(corpus))] == [
        [1, 2],
        [3, 4],
        [5],
        [6],
        [7, 8],
    ]
    assert str(corpus.report).endswith("0 lost (0.0%); 2 sequences of one token have no target")
    whole = open_corpus(data_config(tmp_path, path, context_tokens=5, beyond_context="drop"), vocab=300)
    assert str(whole.report).endswith("; 1 sequences of one token have no target")


def test_a_corpus_knows_the_tokenizer_that_made_its_tokens(tmp_path: Path) -> None:
    trained = open_corpus(data_config(tmp_path, write_tree(tmp_path / "t", TEXTS)), vocab=300)
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"input_ids": [1, 2]}\n')

    assert trained.tokenizer is not None
    assert read_tokenizer(trained.tokenizer).encode(TEXTS[0]).ids == trained.sequence(0).token_ids.tolist()
    assert open_corpus(data_config(tmp_path, tokens), vocab=300).tokenizer is None


def test_a_token_outside_of_the_vocabulary_names_the_document_the_id_and_the_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train_tokenizer(TEXTS, 300).save(str(path))
    config = data_config(tmp_path, write_tree(tmp_path / "t", ["x", TEXTS[0]]), tokenizer=path)

    with pytest.raises(DataError, match=r"document 1\.py: token id \d+ is outside of the vocabulary of 260 entries"):
        open_corpus(config, vocab=260)


def test_a_vocabulary_too_small_for_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least 256 entries, \[model\] vocab is 97"):
        open_corpus(data_config(tmp_path, write_tree(tmp_path / "t", TEXTS)), vocab=97)


def test_an_empty_corpus_says_where_it_looked_and_what_it_skipped(tmp_path: Path) -> None:
    config = data_config(tmp_path, write_tree(tmp_path / "t", ["", " "]))

    with pytest.raises(DataError, match=r"corpus is empty: .*known kind in .*/t \(skipped: 2 empty\)"):
        open_corpus(config, vocab=300)


def test_a_corpus_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist \(\[data\] corpus\)"):
        open_corpus(data_config(tmp_path, tmp_path / "nowhere"), vocab=300)


def test_dropping_every_document_is_an_error_and_not_an_empty_training_set(tmp_path: Path) -> None:
    config = data_config(tmp_path, write_tree(tmp_path / "t", TEXTS), context_tokens=2, beyond_context="drop")

    with pytest.raises(DataError, match="no sequence is left: all 3 documents are longer than 2 tokens"):
        open_corpus(config, vocab=300)


def test_a_broken_tokenizer_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        read_tokenizer(path)


def _open_and_send(tmp_path: Path, tree: Path, barrier: object, results: object) -> None:
    barrier.wait(30)  # type: ignore[attr-defined]  # multiprocessing gives its objects no type
    corpus = open_corpus(data_config(tmp_path, tree), vocab=300)
    results.put([corpus.sequence(index).token_ids.tolist() for index in range(len(corpus))])  # type: ignore[attr-defined]  # as above


@pytest.mark.distributed
def test_ranks_that_open_the_corpus_at_once_all_find_the_same_tokens(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "t", TEXTS)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    ranks = [context.Process(target=_open_and_send, args=(tmp_path, tree, barrier, results)) for _ in range(3)]
    for rank in ranks:
        rank.start()

    seen = [results.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(30)

    assert seen[0] == seen[1] == seen[2]
    assert len(list((tmp_path / "cache").glob("tokens-*"))) == 1
    assert not list((tmp_path / "cache").glob("partial-*"))
