"""Documents: the texts of a corpus one after another, from a tree of files or from a JSONL file.

What cannot be used is skipped, said with its place, and counted; nothing disappears silently. Entry point:
``read_documents``.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from infinipipe_executor.errors import DataError

logger = logging.getLogger(__name__)

# More than this many skipped documents are only counted.
SHOWN_SKIPS = 5


class Document(NamedTuple):
    """One text with the place it comes from: a path, or a path and a line."""

    name: str
    text: str


@dataclass(slots=True)
class SkippedDocuments:
    """Documents that could not be used, counted by reason ("empty", "not UTF-8", "no text", ...)."""

    count_by_reason: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Count one and, for the first few of a reason, log its place."""
        count = self.count_by_reason.get(reason, 0) + 1
        self.count_by_reason[reason] = count
        if count <= SHOWN_SKIPS:
            suffix = "; more of these are only counted" if count == SHOWN_SKIPS else ""
            logger.info("%s: skipped, %s%s", name, reason, suffix)


def read_documents(
    corpus: Path, pattern: str, exclude: tuple[str, ...], skipped: SkippedDocuments
) -> Iterator[Document]:
    """Read a corpus document by document, in an order that depends on names only.

    Args:
        corpus: A folder, or a ``.jsonl`` file.
        pattern: Which files of a folder, at any depth; one file is one document.
        exclude: Names of folders whose files are left out.
        skipped: Counts what is left out for its content.

    Raises:
        DataError: If the corpus does not exist or is of another kind.
    """
    files = list_files(corpus, pattern, exclude)
    if corpus.is_dir():
        return _read_tree(corpus.resolve(), files, skipped)
    return _read_jsonl(corpus, skipped)


def list_files(corpus: Path, pattern: str, exclude: tuple[str, ...]) -> list[Path]:
    """List the files of a corpus by name, without a look into them.

    Args:
        corpus: A folder, or a ``.jsonl`` file.
        pattern: Which files of a folder, at any depth.
        exclude: Names of folders whose files are left out.

    Raises:
        DataError: If the corpus does not exist or is of another kind.
    """
    if corpus.is_dir():
        root, left_out = corpus.resolve(), set(exclude)  # a symbolic link to a folder is a folder
        return [
            path
            for path in sorted(root.rglob(pattern))
            if not left_out.intersection(path.relative_to(root).parts[:-1]) and path.is_file()
        ]
    if corpus.suffix == ".jsonl" and corpus.is_file():
        return [corpus]
    if not corpus.exists():
        raise DataError(f"corpus {corpus} does not exist ([data] corpus)")
    raise DataError(f"corpus {corpus} is neither a folder nor a .jsonl file ([data] corpus)")


def _read_tree(root: Path, files: list[Path], skipped: SkippedDocuments) -> Iterator[Document]:
    for path in files:
        # A name need not be valid Unicode.
        name = os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace")
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            skipped.add("not UTF-8", name)
            continue
        except OSError as error:
            skipped.add(f"unreadable ({error.strerror})", name)
            continue
        if text.strip():
            yield Document(name, text)
        else:
            skipped.add("empty", name)


def _read_jsonl(path: Path, skipped: SkippedDocuments) -> Iterator[Document]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                name = f"{path.name}:{number}"
                reason, text = _parse_line(line)
                if reason:
                    skipped.add(reason, name)
                else:
                    yield Document(name, text)
    except OSError as error:
        raise DataError(f"corpus {path} cannot be read: {error.strerror} ([data] corpus)") from error


def _parse_line(line: bytes) -> tuple[str, str]:
    """Return why a line cannot be used (empty: it can) and its text."""
    if not line.strip():
        return "blank line", ""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "not UTF-8", ""
    except (ValueError, RecursionError):  # also a number too long to read, and brackets nested too deeply
        return "not JSON", ""
    return _row_text(row)


def _row_text(row: object) -> tuple[str, str]:
    if not isinstance(row, dict) or "text" not in row:
        return 'no "text"', ""
    text = row["text"]
    if text is None:
        return '"text" is null', ""
    if not isinstance(text, str):
        return f'"text" is a {type(text).__name__}', ""
    if not text.strip():
        return "empty", ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and no encoding can hold
        return "not valid Unicode", ""
    return "", text
