"""Rows of Arrow batches, which Parquet files and datasets on disk have in common."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from infinipipe_executor.data.documents import Record
from infinipipe_executor.errors import DataError

# Rows turned into Python objects at a time: bounds the memory that long documents take.
ROWS_AT_A_TIME = 256


def present_columns(path: Path, names: Iterable[str], columns: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
    """List the columns to read of a file.

    Raises:
        DataError: If one that is needed is not there.
    """
    present = list(names)
    for column in columns:
        if column not in present:
            raise DataError(f'corpus {path} has no column "{column}", only {", ".join(present)} ([data] format)')
    return [*columns, *(column for column in optional if column in present)]


def batch_records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Turn a record batch into one mapping a row; a list of integers becomes an array without a detour over objects."""
    for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
        part = batch.slice(start, ROWS_AT_A_TIME)
        columns = [_values(column) for column in part.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(part.schema.names, values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and pa.types.is_integer(kind.value_type):
        return [scalar.values.to_numpy(zero_copy_only=False) if scalar.is_valid else None for scalar in column]
    return list(column.to_pylist())
