"""Datasets that the library ``datasets`` saved on disk: Arrow files, mapped into memory, and a note that lists them."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from infinipipe_executor.data.arrow_rows import batch_records, present_columns
from infinipipe_executor.data.documents import Row, SkippedDocuments
from infinipipe_executor.errors import DataError

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """The Arrow files of one saved dataset; see ``Source``."""

    root: Path
    files: list[str]

    @property
    def kind(self) -> str:
        """Name the kind of the files."""
        return "dataset on disk"

    def columns_of(self, file_index: int) -> frozenset[str]:
        """Read the columns of the schema."""
        with _opened(self.root / self.files[file_index]) as stream:
            return frozenset(stream.schema.names)

    def rows(self, columns: tuple[str, ...], optional: tuple[str, ...], skipped: SkippedDocuments) -> Iterator[Row]:  # noqa: ARG002  # rows are what the content decides
        """Read batch by batch; rows count through a file."""
        for index, name in enumerate(self.files):
            path = self.root / name
            with _opened(path) as stream:
                present = present_columns(path, stream.schema.names, columns, optional)
                number = 0
                for batch in stream:
                    for record in batch_records(batch.select(present)):
                        number += 1
                        yield index, number, record


def is_dataset(folder: Path) -> bool:
    """Tell whether a folder is a saved dataset, or several under one name."""
    return (folder / STATE_FILE).is_file() or (folder / SPLITS_FILE).is_file()


def open_dataset(folder: Path) -> DatasetFolder:
    """Open a saved dataset; several under one name are told apart by their folder, unless there is only one.

    Raises:
        DataError: If the note is damaged, or there are several datasets (names them).
    """
    if (folder / SPLITS_FILE).is_file():
        splits = _strings(folder / SPLITS_FILE, lambda note: note["splits"])
        if len(splits) != 1:
            example = f"; for example corpus = {json.dumps(str(folder / splits[0]))}" if splits else ""
            raise DataError(
                f"corpus {folder} holds {len(splits)} datasets, {', '.join(splits) or 'none'}: name the folder of one"
                f"{example} ([data] corpus)"
            )
        folder = folder / splits[0]
    files = _strings(folder / STATE_FILE, lambda note: [file["filename"] for file in note["_data_files"]])
    return DatasetFolder(folder, files)


def _strings(path: Path, read: Callable[[Any], Iterable[Any]]) -> list[str]:
    try:
        names = list(read(json.loads(path.read_text(encoding="utf-8"))))
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it must list names of files")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror} ([data] corpus)") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no note of a saved dataset: {error!r} ([data] corpus)") from error
    return names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with pa.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
            yield stream
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"corpus {path} cannot be read: {error} ([data] corpus)") from error
