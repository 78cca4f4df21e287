"""The SQLite file below the job store: opened and checked, one owner at a time, every error one sentence.

Writes are transactions in a write-ahead log: a planner that is killed loses nothing that it answered. The log is synced
at checkpoints only, so that a write costs the event loop no wait for the disk; what a *machine* that loses power had
written in its last seconds may be gone, and the rest is whole.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infinipipe_planner.errors import PlannerError

MEMORY = ":memory:"
"""Path of a store that ends with its owner."""

SCHEMA_VERSION = 3
APPLICATION_ID = 0x496E6650
"""Marks the file as a planner's ("InfP"), so that another program's file is never written to."""

LOCK_TIMEOUT_S = 2.0
"""Seconds to wait for a planner that is just letting go of the file."""

LARGEST_LOG_BYTES = 64 * 2**20

_JOBS = """
CREATE TABLE jobs (
  serial INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  spec TEXT NOT NULL,
  generation INTEGER NOT NULL,
  created_unix_s REAL NOT NULL,
  submitted_step_count INTEGER NOT NULL DEFAULT 0,
  planned_step_count INTEGER NOT NULL DEFAULT 0,
  forgotten_through INTEGER NOT NULL DEFAULT -1,
  UNIQUE (owner, name)
);
"""

# A table of its own, so that a sum over all steps reads little.
_KEPT = """
CREATE TABLE kept (
  step_id INTEGER PRIMARY KEY REFERENCES steps (id) ON DELETE CASCADE,
  job_serial INTEGER NOT NULL,
  byte_count INTEGER NOT NULL
);
"""

_SCHEMA = (
    _JOBS
    + """
CREATE TABLE steps (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job_serial INTEGER NOT NULL REFERENCES jobs (serial) ON DELETE CASCADE,
  step INTEGER NOT NULL,
  digest TEXT NOT NULL,
  sequence_count INTEGER NOT NULL,
  token_count INTEGER NOT NULL,
  target_token_count INTEGER,
  lengths_tokens BLOB NOT NULL,
  UNIQUE (job_serial, step)
);
CREATE TABLE plans (
  step_id INTEGER PRIMARY KEY REFERENCES steps (id) ON DELETE CASCADE,
  chunk_count INTEGER NOT NULL,
  pipeline_count INTEGER NOT NULL,
  slice_count INTEGER NOT NULL,
  makespan_s REAL NOT NULL,
  bubble_ratio REAL NOT NULL,
  solve_s REAL NOT NULL,
  outcome TEXT NOT NULL,
  encoded_plan BLOB NOT NULL
);
CREATE TABLE failures (
  step_id INTEGER PRIMARY KEY REFERENCES steps (id) ON DELETE CASCADE,
  status_name TEXT NOT NULL,
  sentence TEXT NOT NULL
);
CREATE TABLE reports (
  step_id INTEGER NOT NULL REFERENCES steps (id) ON DELETE CASCADE,
  rank INTEGER NOT NULL,
  step_s REAL NOT NULL,
  encoded_report BLOB NOT NULL,
  PRIMARY KEY (step_id, rank)
);
"""
    + _KEPT
)

# Jobs had no owner, and no two of them had one name.
_MIGRATION_FROM_1 = f"""
CREATE TABLE jobs_before AS SELECT * FROM jobs;
DROP TABLE jobs;
{_JOBS};
INSERT INTO jobs SELECT serial, '', name, spec, generation, created_unix_s, submitted_step_count, planned_step_count,
  forgotten_through FROM jobs_before;
DROP TABLE jobs_before;
"""

# Bytes were not counted by step. Those of plans that are there would take a look at all of them: they count as nothing.
_MIGRATION_FROM_2 = f"""
{_KEPT};
INSERT INTO kept SELECT id, job_serial, 8 * sequence_count FROM steps;
"""


class StoreError(PlannerError):
    """The store's file cannot be opened, read or written; the message names it and the reason."""


class StoreFile:
    """An open store, for the thread that opened it.

    Args:
        path: The file, which is created with its folder; ``MEMORY`` for none.

    Raises:
        StoreError: If it cannot be opened, belongs to another program or planner, or is of a newer version.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            if path != MEMORY:
                Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot open the store {path}: {_reason(error)}") from None
        try:
            self._open()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"cannot open the store {path}: {_reason(error)}") from None
        except StoreError:
            self.close()
            raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write as one transaction; an error takes back all of it.

        Raises:
            StoreError: If it cannot be written, for example because the disk is full.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(f"cannot write the store {self._path}: {_reason(error)}") from None
        finally:
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a statement.

        Raises:
            StoreError: If the file cannot be read.
        """
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {self._path}: {_reason(error)}") from None

    def used_bytes(self) -> int:
        """Count the bytes that hold something; pages that were freed are used again before the file grows."""
        page_count, free_count, page_bytes = (
            self._pragma(name) for name in ("page_count", "freelist_count", "page_size")
        )
        return (page_count - free_count) * page_bytes

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._connection.close()

    def _open(self) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(LOCK_TIMEOUT_S * 1000)}")
        # The only owner: another planner on the same file is refused instead of solving the same steps.
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._connection.execute("PRAGMA secure_delete = OFF")  # nothing secret here, and zeroing costs a write a page
        is_new = not self._pragma("schema_version")
        if not is_new:
            self._check_owner()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(f"PRAGMA journal_size_limit = {LARGEST_LOG_BYTES}")
        with self.writing() as connection:  # takes the lock, too
            if is_new:
                _execute_all(connection, _SCHEMA)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            else:
                version = self._pragma("user_version")
                if version < 2:
                    _execute_all(connection, _MIGRATION_FROM_1)
                if version < SCHEMA_VERSION:
                    _execute_all(connection, _MIGRATION_FROM_2)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        # Not before: a table that is replaced would take along what refers to it.
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _check_owner(self) -> None:
        if self._pragma("application_id") != APPLICATION_ID:
            raise StoreError(f"{self._path} is not a planner's store but the database of another program")
        version = self._pragma("user_version")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store {self._path} was written by a newer planner (schema {version}, this one knows "
                f"{SCHEMA_VERSION}): start that planner, or name another file with --store"
            )

    def _pragma(self, name: str) -> int:
        value: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value


def _execute_all(connection: sqlite3.Connection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        connection.execute(statement)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
        return "another planner uses it"
    return str(error)
