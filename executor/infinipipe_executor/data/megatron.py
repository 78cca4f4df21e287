"""Megatron's indexed datasets: tokens in a ``.bin`` file, mapped into memory and never copied, and their ``.idx``.

The index is, in little-endian order: magic, version (uint64), code of the type of tokens (uint8), counts of sequences
and of document bounds (uint64 each), then the lengths (int32) and byte offsets (int64) of all sequences and the bounds
of documents, counted in sequences (int64).
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infinipipe_executor.data.token_files import Int64Array
from infinipipe_executor.errors import DataError

INDEX_SUFFIX, TOKENS_SUFFIX = ".idx", ".bin"
MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
_FLOAT_CODES = (6, 7)


@dataclass(frozen=True, slots=True)
class MegatronSource:
    """A pair of files.

    Attributes:
        prefix: Their path without the suffix.
    """

    prefix: Path

    @property
    def index_path(self) -> Path:
        """Path of the index."""
        return self.prefix.with_name(self.prefix.name + INDEX_SUFFIX)

    @property
    def tokens_path(self) -> Path:
        """Path of the tokens."""
        return self.prefix.with_name(self.prefix.name + TOKENS_SUFFIX)


@dataclass(frozen=True, slots=True)
class MegatronTokens:
    """Documents of a pair of files.

    Attributes:
        token_ids: All tokens, mapped; of the type in which they are stored.
        starts: First token of every document that has any.
        lengths: Tokens of every such document.
        numbers: Number of every such document in the index, from 1.
        empty_count: Documents without a token.
    """

    token_ids: npt.NDArray[np.integer[Any]]
    starts: Int64Array
    lengths: Int64Array
    numbers: Int64Array
    empty_count: int


def read_megatron(source: MegatronSource) -> MegatronTokens:
    """Map the tokens and read the index.

    Raises:
        DataError: If a file is missing, short, of another kind or version, or the index points outside of the tokens.
    """
    dtype, sequence_lengths, pointers, bounds = _read_index(source.index_path)
    token_ids = _map_tokens(source.tokens_path, dtype)
    _check_pointers(source, sequence_lengths, pointers, len(token_ids), np.dtype(dtype).itemsize)
    if bounds[:1].tolist() != [0] or bounds[-1:].tolist() != [len(sequence_lengths)] or (np.diff(bounds) < 0).any():
        raise DataError(f"{source.index_path} is damaged: the bounds of its documents do not divide its sequences")
    _check_documents(source, sequence_lengths, pointers, bounds, np.dtype(dtype).itemsize)
    ends = np.concatenate([[0], np.cumsum(sequence_lengths, dtype=np.int64)])
    lengths = ends[bounds[1:]] - ends[bounds[:-1]]
    numbers = np.flatnonzero(lengths) + 1
    first_sequences = bounds[:-1][numbers - 1]
    # A document may begin with sequences that hold nothing; its tokens start with the first that holds some.
    filled = np.flatnonzero(sequence_lengths)
    first_sequences = filled[np.searchsorted(filled, first_sequences)]
    starts = pointers[first_sequences] // np.dtype(dtype).itemsize
    return MegatronTokens(token_ids, starts, lengths[numbers - 1], numbers, len(lengths) - len(numbers))


def _read_index(path: Path) -> tuple[type[np.integer[Any]], npt.NDArray[np.int32], Int64Array, Int64Array]:
    with _failure_told(path):
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    if header[: len(MAGIC)] != MAGIC:
        raise DataError(f"{path} is no index of Megatron: it begins with {header[: len(MAGIC)]!r}, not {MAGIC!r}")
    if len(header) < _HEADER.size:
        raise DataError(f"{path} is cut off: {size_bytes} bytes, its header alone has {_HEADER.size}")
    _, version, code, sequence_count, bound_count = _HEADER.unpack(header)
    if version != VERSION:
        raise DataError(f"{path} is of version {version}; version {VERSION} is known")
    if code in _FLOAT_CODES or code not in _DTYPES:
        what = "floating-point numbers" if code in _FLOAT_CODES else f"of the unknown type {code}"
        raise DataError(f"the tokens of {path} are {what}; known types: {', '.join(map(str, _DTYPES))}")
    needed_bytes = _HEADER.size + 12 * sequence_count + 8 * bound_count
    if size_bytes < needed_bytes:
        raise DataError(
            f"{path} is cut off: {size_bytes} bytes, {sequence_count} sequences in {max(0, bound_count - 1)} documents "
            f"need {needed_bytes}"
        )
    with _failure_told(path):
        content = np.memmap(path, np.uint8, "r", shape=(size_bytes,))
    pointers_at = _HEADER.size + 4 * sequence_count
    bounds_at = pointers_at + 8 * sequence_count
    return (
        _DTYPES[code],
        np.frombuffer(content, np.dtype("<i4"), sequence_count, _HEADER.size),
        np.frombuffer(content, np.dtype("<i8"), sequence_count, pointers_at),
        np.frombuffer(content, np.dtype("<i8"), bound_count, bounds_at),
    )


def _map_tokens(path: Path, dtype: type[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    with _failure_told(path):
        count = path.stat().st_size // np.dtype(dtype).itemsize
        return np.memmap(path, dtype, "r", shape=(count,)) if count else np.empty(0, dtype)


@contextmanager
def _failure_told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"corpus {path} cannot be read: {error.strerror} ([data] corpus)") from error


def _check_pointers(
    source: MegatronSource, lengths: npt.NDArray[np.int32], pointers: Int64Array, token_count: int, item_bytes: int
) -> None:
    ends = pointers + lengths.astype(np.int64) * item_bytes
    wrong = np.flatnonzero(
        (lengths < 0) | (pointers < 0) | (pointers % item_bytes != 0) | (ends > token_count * item_bytes)
    )
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{source.index_path} and {source.tokens_path} do not belong together, or one is cut off: sequence {first} "
            f"has {lengths[first]} tokens from byte {pointers[first]} on, of {token_count * item_bytes}"
        )


def _check_documents(
    source: MegatronSource,
    lengths: npt.NDArray[np.int32],
    pointers: Int64Array,
    bounds: Int64Array,
    item_bytes: int,
) -> None:
    """Refuse a document whose sequences do not lie one right after the other: it could not be read without a copy."""
    if len(lengths) < 2:
        return
    inside = np.ones(len(lengths) - 1, dtype=np.bool_)
    inner = bounds[(bounds > 0) & (bounds < len(lengths))]
    inside[inner - 1] = False
    torn = np.flatnonzero(inside & (pointers[1:] != pointers[:-1] + lengths[:-1].astype(np.int64) * item_bytes))
    if len(torn):
        raise DataError(
            f"{source.index_path}: sequences {torn[0]} and {torn[0] + 1} are of one document, but do not lie one after "
            "the other"
        )
