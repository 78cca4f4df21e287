"""Text files: one file is one document."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infinipipe_executor.data.documents import Row, SkippedDocuments, document_name


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files whose whole content is the text of a document; see ``Source``."""

    root: Path
    files: list[str]

    @property
    def kind(self) -> str:
        """Name the kind of the files."""
        return "whole files"

    def columns_of(self, file_index: int) -> frozenset[str]:  # noqa: ARG002  # every file is alike
        """Every file is a text."""
        return frozenset({"text"})

    def rows(self, columns: tuple[str, ...], optional: tuple[str, ...], skipped: SkippedDocuments) -> Iterator[Row]:  # noqa: ARG002  # there is one column
        """Read file by file; one that cannot be read, or is not UTF-8, is skipped."""
        for index, file in enumerate(self.files):
            try:
                text = (self.root / file).read_bytes().decode("utf-8-sig")
            except UnicodeDecodeError:
                skipped.add("not UTF-8", document_name(file, 0))
            except OSError as error:
                skipped.add(f"unreadable ({error.strerror})", document_name(file, 0))
            else:
                yield index, 0, {"text": text}
