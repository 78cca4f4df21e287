"""JSON lines, plain or packed with gzip: one row a line.

Lines are read one at a time, whatever their length; one that is no JSON costs itself and nothing else. A reader of
columns would have to know the type of a column before it has seen all of it; this one need not.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from infinipipe_executor.data.documents import Record, Row, SkippedDocuments, document_name
from infinipipe_executor.errors import DataError

GZIP_SUFFIX = ".gz"

# Calling it directly takes half the time of json.loads, which counts where documents are short.
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Files of JSON lines; see ``Source``."""

    root: Path
    files: list[str]
    known_columns: frozenset[str]

    @property
    def kind(self) -> str:
        """Name the kind of the files."""
        return "JSON lines"

    def columns_of(self, file_index: int) -> frozenset[str]:
        """Look for the first row that fills any known column; a null fills nothing."""
        for line in self._lines(file_index):
            _, record = _parse_line(line)
            filled = frozenset(name for name, value in record.items() if value is not None)
            if filled & self.known_columns:
                return filled
        return frozenset()

    def rows(self, columns: tuple[str, ...], optional: tuple[str, ...], skipped: SkippedDocuments) -> Iterator[Row]:  # noqa: ARG002  # a line holds what it holds
        """Read line by line."""
        for index, file in enumerate(self.files):
            for number, line in enumerate(self._lines(index), start=1):
                reason, record = _parse_line(line)
                if reason:
                    skipped.add(reason, document_name(file, number))
                else:
                    yield index, number, record

    def _lines(self, file_index: int) -> Iterator[bytes]:
        path = self.root / self.files[file_index]
        number = 0
        try:
            with _open(path) as lines:
                for number, line in enumerate(lines, start=1):  # told if the next one fails
                    yield line if number > 1 else line.removeprefix(codecs.BOM_UTF8)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"corpus {path} is damaged after line {number}: {error} ([data] corpus)") from error
        except OSError as error:
            raise DataError(f"corpus {path} cannot be read: {error.strerror} ([data] corpus)") from error


def _open(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == GZIP_SUFFIX else path.open("rb")  # type: ignore[return-value]  # both give lines of bytes


def _parse_line(line: bytes) -> tuple[str, Record]:
    """Return why a line cannot be used (empty: it can) and its object; whatever is no object has no columns."""
    try:
        text = line.strip().decode()
        row, end = _DECODER.raw_decode(text)
    except UnicodeDecodeError:
        return "not UTF-8", {}
    except (ValueError, RecursionError):  # also a number too long to read, and brackets nested too deeply
        return "not JSON" if line.strip() else "blank line", {}
    if end != len(text):
        return "not JSON", {}
    return "", row if isinstance(row, dict) else {}
