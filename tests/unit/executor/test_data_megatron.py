"""Megatron's indexed datasets: mapped, every type of token, and every way in which a pair of files can be wrong."""

import builtins
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infinipipe_executor.data import token_cache
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.megatron import MegatronSource, read_megatron
from infinipipe_executor.errors import DataError
from support_executor.corpora import VOCAB, data_config, target_lists, token_lists, write_megatron

DOCUMENTS: list[list[list[int]]] = [[[1, 2, 3]], [[]], [[], [4], [5, 6]], [[7]]]
TOKENS = [[1, 2, 3], [4, 5, 6], [7]]


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(1, np.uint8), (2, np.int8), (3, np.int16), (4, np.int32), (5, np.int64), (8, np.uint16)],
)
def test_tokens_of_every_type_are_read_document_by_document(tmp_path: Path, code: int, dtype: Any) -> None:
    index = write_megatron(tmp_path / "d", DOCUMENTS, dtype, code=code)

    corpus = open_corpus(data_config(tmp_path, index), VOCAB)

    assert token_lists(corpus) == TOKENS
    assert target_lists(corpus) == [[2, 3, -100], [5, 6, -100], [-100]]
    assert corpus.report.skipped == {"empty": 1}
    assert str(corpus.report).startswith(f"corpus: Megatron index, {np.dtype(dtype)}: 3 documents, 1 skipped (empty); ")


@pytest.mark.parametrize("name", ["d", "d.idx", "d.bin"])
def test_either_file_or_their_common_name_names_a_pair(tmp_path: Path, name: str) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)

    assert token_lists(open_corpus(data_config(tmp_path, tmp_path / name), VOCAB)) == TOKENS


def test_ids_beyond_the_positive_half_of_16_bits_stay_what_they_are(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", [[[65535, 40000]]])

    assert token_lists(open_corpus(data_config(tmp_path, tmp_path / "d"), 65536)) == [[65535, 40000]]


def test_tokens_are_mapped_and_not_copied_and_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)
    monkeypatch.setattr(token_cache, "SETTLED_S", -1.0)
    open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)
    monkeypatch.setattr(token_cache, "_scan", lambda *_: pytest.fail("looked through again"))

    assert token_lists(open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)) == TOKENS
    assert isinstance(read_megatron(MegatronSource(tmp_path / "d")).token_ids, np.memmap)
    assert not list((tmp_path / "cache").glob("tokens-*"))


def test_documents_are_cut_like_any_other(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", [[list(range(10))], [[1]]])

    corpus = open_corpus(data_config(tmp_path, tmp_path / "d", context_tokens=4, beyond_context="split"), VOCAB)

    assert token_lists(corpus) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [1]]


def test_a_token_outside_of_the_vocabulary_names_the_document(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)

    with pytest.raises(
        DataError, match=r"document d:3: token id 6 is outside of the vocabulary of 6 entries .*; 2 such"
    ):
        open_corpus(data_config(tmp_path, tmp_path / "d"), 6)


def test_a_negative_token_is_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", [[[1, -5]]], np.int32, code=4)

    with pytest.raises(DataError, match=r"d\.bin holds the negative token id -5"):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, r"d\.idx is no index of Megatron: it begins with b'TNTIDX"),
        ({"version": 2}, r"d\.idx is of version 2; version 1 is known"),
        ({"code": 7}, r"tokens of .*d\.idx are floating-point numbers; known types: 1, 2, 3, 4, 5, 8"),
        ({"code": 99}, r"tokens of .*d\.idx are of the unknown type 99"),
    ],
)
def test_an_index_of_another_kind_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS, **changes)

    with pytest.raises(DataError, match=message):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)


@pytest.mark.parametrize(
    ("suffix", "kept_bytes", "message"),
    [
        (".idx", 0, r"d\.idx is no index of Megatron"),
        (".idx", 20, r"d\.idx is cut off: 20 bytes, its header alone has 34"),
        (".idx", 60, r"d\.idx is cut off: 60 bytes, 6 sequences in 4 documents need 146"),
        (
            ".bin",
            9,
            r"d\.idx and .*d\.bin do not belong together, or one is cut off: sequence 4 has 2 tokens from byte 8",
        ),
    ],
)
def test_a_short_file_is_named_with_what_it_should_hold(
    tmp_path: Path, suffix: str, kept_bytes: int, message: str
) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)
    path = tmp_path / f"d{suffix}"
    path.write_bytes(path.read_bytes()[:kept_bytes])

    with pytest.raises(DataError, match=message):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)
    (tmp_path / "d.bin").unlink()

    with pytest.raises(DataError, match=r"d\.bin cannot be read: No such file"):
        open_corpus(data_config(tmp_path, tmp_path / "d.idx"), VOCAB)


@pytest.mark.parametrize("name", ["d.idx", "d.bin"])
def test_a_file_that_may_not_be_read_is_named_and_not_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_megatron(tmp_path / "d", DOCUMENTS)
    really_open = io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if Path(file).name == name:
            raise PermissionError(13, "Permission denied")
        return really_open(file, *arguments, **options)

    monkeypatch.setattr(io, "open", refuse)  # what pathlib calls
    monkeypatch.setattr(builtins, "open", refuse)  # what numpy calls
    with pytest.raises(DataError, match=rf"corpus .*{name} cannot be read: Permission denied \(\[data\] corpus\)"):
        open_corpus(data_config(tmp_path, tmp_path / "d"), VOCAB)


def test_a_document_whose_sequences_lie_apart_is_refused(tmp_path: Path) -> None:
    index = write_megatron(tmp_path / "d", [[[1, 2], [3, 4]], [[5, 6]]])
    content = bytearray(index.read_bytes())
    pointers_at = 34 + 3 * 4
    content[pointers_at + 8 : pointers_at + 16] = (8).to_bytes(
        8, "little"
    )  # the second sequence lies where the third does
    index.write_bytes(content)

    with pytest.raises(DataError, match="sequences 0 and 1 are of one document, but do not lie one after the other"):
        open_corpus(data_config(tmp_path, index), VOCAB)


def test_a_folder_of_pairs_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    write_megatron(tmp_path / "m" / "d", DOCUMENTS)

    with pytest.raises(DataError, match=r'holds 1 \.idx files: name one, for example corpus = ".*/m/d\.idx"'):
        open_corpus(data_config(tmp_path, tmp_path / "m"), VOCAB)
