"""Documents: what every source of training data comes down to.

A source yields rows, a row format makes documents of them, an encoder makes tokens of documents. What cannot be used is
skipped, said with its place, and counted; nothing disappears silently. Entry point: ``read_documents``.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from infinipipe_executor.errors import DataError

logger = logging.getLogger(__name__)

# More than this many skipped documents are only counted.
SHOWN_SKIPS = 5

BoolArray = npt.NDArray[np.bool_]
Record = Mapping[str, object]


# One row of a source behind its place: index of the file, and line or row from 1 (0: the whole file is one row).
# There are millions of these: a plain tuple is made in a fraction of the time of one with names.
Row = tuple[int, int, Record]


class MarkedText(NamedTuple):
    """A text of which only some characters are learnt.

    Attributes:
        text: The whole text.
        learnt_spans: First character and end of what is learnt, in order, not overlapping.
    """

    text: str
    learnt_spans: tuple[tuple[int, int], ...]


class TokenIds(NamedTuple):
    """Tokens of a document; ``learnt`` says which of them may be targets (None: all)."""

    ids: Sequence[int]
    learnt: BoolArray | None


Content = str | MarkedText | TokenIds


# The content of a document behind its place, as in ``Row``.
Document = tuple[int, int, Content]


class Source(Protocol):
    """Files of one kind, read row by row.

    Attributes:
        kind: What the files are, for people ("JSON lines").
        root: Folder of the files.
        files: Their names below it, in the order in which they are read.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def root(self) -> Path: ...  # noqa: D102

    @property
    def files(self) -> Sequence[str]: ...  # noqa: D102

    def columns_of(self, file_index: int) -> frozenset[str]:
        """Tell which columns a file has: those of its schema, or those that its first usable row fills."""
        ...

    def rows(self, columns: tuple[str, ...], optional: tuple[str, ...], skipped: "SkippedDocuments") -> Iterator[Row]:
        """Read all rows of all files.

        Args:
            columns: What is needed of a row; a source without a schema yields what there is.
            optional: What is taken where it is there.
            skipped: Counts what is no row at all.

        Raises:
            DataError: If a file cannot be read, or its schema lacks a column.
        """
        ...


class RowFormat(Protocol):
    """What a row says, and how it becomes a document.

    Attributes:
        name: Value of ``[data] format``: the column by which it is known.
        columns: Columns that a row must have.
        optional: Columns that are taken where they are.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def columns(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def optional(self) -> tuple[str, ...]: ...  # noqa: D102

    def content(self, record: Record) -> Content:
        """Make the content of a document.

        Raises:
            UnusableRowError: If this row cannot be used; it is skipped.
            DataError: If the row shows that the whole corpus cannot be meant so.
        """
        ...


class UnusableRowError(Exception):
    """A row cannot be used.

    Attributes:
        reason: By which skipped documents are counted.
        detail: What else is known of this one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class SkippedDocuments:
    """Documents that could not be used, counted by reason ("empty", "not UTF-8", "no text", ...).

    Attributes:
        count_by_reason: How many, by reason.
        told: Whether places are logged; a corpus that is read twice tells them once.
    """

    count_by_reason: dict[str, int] = field(default_factory=dict)
    told: bool = True

    def add(self, reason: str, name: str, detail: str = "") -> None:
        """Count one and, for the first few of a reason, log its place."""
        count = self.count_by_reason.get(reason, 0) + 1
        self.count_by_reason[reason] = count
        if self.told and count <= SHOWN_SKIPS:
            suffix = "; more of these are only counted" if count == SHOWN_SKIPS else ""
            logger.info("%s: skipped, %s%s%s", name, reason, f": {detail}" if detail else "", suffix)


def document_name(file: str, number: int) -> str:
    """Name a document by its place; the name of a file need not be valid Unicode."""
    shown = os.fsencode(file).decode("utf-8", "backslashreplace")
    return f"{shown}:{number}" if number else shown


def read_documents(source: Source, row_format: RowFormat, skipped: SkippedDocuments) -> Iterator[Document]:
    """Read a corpus document by document, in an order that depends on names only.

    Args:
        source: The files.
        row_format: What a row says.
        skipped: Counts what is left out for its content.

    Raises:
        DataError: If a file cannot be read, or a row shows that the corpus cannot be meant so (names the row).
    """
    content_of = row_format.content
    for file_index, number, record in source.rows(row_format.columns, row_format.optional, skipped):
        try:
            yield file_index, number, content_of(record)
        except UnusableRowError as error:
            skipped.add(error.reason, document_name(source.files[file_index], number), error.detail)
        except DataError as error:
            raise DataError(f"{document_name(source.files[file_index], number)}: {error}") from error
