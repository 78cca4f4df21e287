"""Token files: how the tokens of a corpus lie in a folder of the cache; written document by document, and mapped.

``token_ids.bin`` (int32) holds all tokens, ``ends.bin`` (int64) the end of every document, ``places.bin`` (int64 pairs)
its file and row, ``learnt.bin`` (one byte a token) which tokens may be targets, if not all may. ``index.json`` counts,
and ``files.json`` names the files. Memory does not grow with the corpus, neither here nor in who reads.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from infinipipe_executor.data.documents import BoolArray, TokenIds, document_name

# Tokens and documents held before they are written.
HELD_TOKENS, HELD_DOCUMENTS = 2**20, 2**16

# Tokens looked at in one go by who goes through all of them.
SCAN_TOKENS = 2**22

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """Counts of a folder.

    Attributes:
        description: What the corpus is, for people.
        document_count: Documents with at least one token.
        token_count: Tokens of all of them.
        highest_id: Largest token id; -1 without any token.
        masked: Whether some tokens are not learnt.
        skipped: Documents left out for their content, by reason.
    """

    description: str
    document_count: int
    token_count: int
    highest_id: int
    masked: bool
    skipped: dict[str, int]


class TokenWriter:
    """Writes documents into a folder.

    Args:
        folder: An empty folder.
        may_mask: Whether a document may say which of its tokens are learnt.
    """

    def __init__(self, folder: Path, *, may_mask: bool) -> None:
        self._folder = folder
        self._ids, self._ends, self._places, self._learnt = array("i"), array("q"), array("q"), bytearray()
        self._may_mask = may_mask
        self._masked = False
        self._highest_id = -1
        self.document_count = 0
        self.token_count = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the files; on the way out, write what is held."""
        folder = self._folder
        with (
            (folder / "token_ids.bin").open("wb") as ids,
            (folder / "ends.bin").open("wb") as ends,
            (folder / "places.bin").open("wb") as places,
            (folder / "learnt.bin").open("wb") as learnt,
        ):
            self._files: tuple[BinaryIO, ...] = (ids, ends, places, learnt)
            yield
            self._flush()
        if not self._masked:
            (folder / "learnt.bin").unlink()

    def add(self, file_index: int, number: int, document: TokenIds) -> None:
        """Write one document that has tokens."""
        ids, learnt = document
        self._ids.extend(ids)
        self.token_count += len(ids)
        self.document_count += 1
        self._ends.append(self.token_count)
        self._places.append(file_index)
        self._places.append(number)
        if self._may_mask:
            self._learnt += b"\1" * len(ids) if learnt is None else learnt.tobytes()
            self._masked = self._masked or (learnt is not None and not learnt.all())
        if len(self._ids) >= HELD_TOKENS or len(self._ends) >= HELD_DOCUMENTS:
            self._flush()

    def write_index(self, description: str, files: Sequence[str], skipped: dict[str, int]) -> None:
        """Write counts and names; the files are complete then."""
        index = TokenIndex(description, self.document_count, self.token_count, self._highest_id, self._masked, skipped)
        (self._folder / "files.json").write_text(json.dumps(list(files)), encoding="utf-8")
        (self._folder / "index.json").write_text(json.dumps(asdict(index)), encoding="utf-8")

    def _flush(self) -> None:
        if self._ids:
            self._highest_id = max(self._highest_id, int(np.frombuffer(self._ids, np.int32).max()))
        held: tuple[array[int] | bytearray, ...] = (self._ids, self._ends, self._places, self._learnt)
        for file, content in zip(self._files, held, strict=True):
            file.write(content)
        self._ids, self._ends, self._places, self._learnt = array("i"), array("q"), array("q"), bytearray()


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """A folder, mapped.

    Attributes:
        folder: Where it is.
        index: Counts.
        token_ids: One document after another.
        ends: End of every document in ``token_ids``.
        places: File and row of every document.
        learnt: Which tokens may be targets; None for all.
    """

    folder: Path
    index: TokenIndex
    token_ids: Int32Array
    ends: Int64Array
    places: npt.NDArray[np.int64]
    learnt: BoolArray | None

    def name_of(self, document: int) -> str:
        """Name a document."""
        file_index, number = self.places[document].tolist()
        files = json.loads((self.folder / "files.json").read_text(encoding="utf-8"))
        return document_name(files[file_index], number)


def read_token_files(folder: Path) -> TokenFiles:
    """Map a folder.

    Raises:
        ValueError: If a file does not have the size that the index says.
        KeyError, TypeError: If the index lacks a count or has one that is not known.
    """
    index = TokenIndex(**json.loads((folder / "index.json").read_text(encoding="utf-8")))
    return TokenFiles(
        folder=folder,
        index=index,
        token_ids=_map(folder / "token_ids.bin", np.int32, index.token_count),
        ends=_map(folder / "ends.bin", np.int64, index.document_count),
        places=_map(folder / "places.bin", np.int64, 2 * index.document_count).reshape(-1, 2),
        learnt=_map(folder / "learnt.bin", np.bool_, index.token_count) if index.masked else None,
    )


def _map(path: Path, dtype: type[np.generic], count: int) -> npt.NDArray[Any]:
    size_bytes = path.stat().st_size
    if size_bytes != count * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} has {size_bytes} bytes, not {count * np.dtype(dtype).itemsize}")
    return np.memmap(path, dtype, "r", shape=(count,)) if count else np.empty(0, dtype)
