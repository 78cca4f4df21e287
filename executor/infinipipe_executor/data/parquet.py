"""Parquet files: read row group by row group, and only the columns that are needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infinipipe_executor.data.arrow_rows import ROWS_AT_A_TIME, batch_records, present_columns
from infinipipe_executor.data.documents import Row, SkippedDocuments
from infinipipe_executor.errors import DataError


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Parquet files; see ``Source``."""

    root: Path
    files: list[str]

    @property
    def kind(self) -> str:
        """Name the kind of the files."""
        return "Parquet"

    def columns_of(self, file_index: int) -> frozenset[str]:
        """Read the columns of the schema."""
        with _opened(self.root / self.files[file_index]) as file:
            return frozenset(file.schema_arrow.names)

    def rows(self, columns: tuple[str, ...], optional: tuple[str, ...], skipped: SkippedDocuments) -> Iterator[Row]:  # noqa: ARG002  # rows are what the content decides
        """Read batch by batch; rows count through a file."""
        for index, name in enumerate(self.files):
            path = self.root / name
            with _opened(path) as file:
                present = present_columns(path, file.schema_arrow.names, columns, optional)
                number = 0
                for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=present, use_threads=False):
                    for record in batch_records(batch):
                        number += 1
                        yield index, number, record


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"corpus {path} cannot be read: {error} ([data] corpus)") from error
