"""The store on disk: what comes back after a restart, what is refused, and what a full disk leaves behind."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner import retention
from infinipipe_planner.authentication import NOBODY
from infinipipe_planner.job_errors import StepForgottenError
from infinipipe_planner.job_records import (
    Batch,
    FailedStep,
    JobId,
    JobSpec,
    PlanFigures,
    PlannedStep,
    StoredReport,
    StoredReports,
    UnfinishedStep,
)
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.store_file import APPLICATION_ID, SCHEMA_VERSION, StoreError
from support_service import PROFILE

A, B = (JobId(NOBODY, name) for name in "ab")
SPEC = JobSpec(PROFILE, PlanOptions(max_slice_count=3, gap_ratio=0.125), 4_096)
BATCH = Batch("digest", (5, 7, 2**40), 6)
FIGURES = PlanFigures(3, 1, 2, 1.5, 0.1, 0.2, SolveOutcome.BEST_FOUND)
PLANNED = PlannedStep(FIGURES, b"plan")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "planner.sqlite")


@pytest.fixture
def store(path: str) -> Iterator[JobStore]:
    made = JobStore(path)
    yield made
    made.close()


def reports_of(store: JobStore, generation: int) -> StoredReports:
    return store.load_reports(A, generation, 0, after_rank=-1, most_bytes=1_000)


def is_whole(path: str) -> bool:
    connection = sqlite3.connect(path)
    try:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
    finally:
        connection.close()


def test_everything_that_was_written_is_there_when_the_file_is_opened_again(store: JobStore, path: str) -> None:
    store.open_generation(A, SPEC, 100.0)
    job = store.open_generation(A, SPEC, 200.0)
    for step in range(3):
        store.add_step(A, 2, step, BATCH)
    store.finish_step(A, 2, 0, PLANNED)
    store.finish_step(A, 2, 1, FailedStep("INTERNAL", "no"))
    store.add_report(A, 2, 0, 3, StoredReport(2.5, b"report"))
    before = (store.list_jobs(NOBODY), store.list_steps(A), store.list_unfinished())
    store.close()

    again = JobStore(path)

    assert (again.list_jobs(NOBODY), again.list_steps(A), again.list_unfinished()) == before
    assert again.find_job(A).spec == SPEC
    assert (again.load_plan(A, 2, 0), reports_of(again, 2)) == (b"plan", StoredReports((b"report",), 1))
    assert [stored.result for stored in again.list_steps(A)] == [FIGURES, FailedStep("INTERNAL", "no"), None]
    (unfinished,) = again.list_unfinished()
    assert unfinished == UnfinishedStep(again.find_job(A), 2, BATCH)
    assert (job.generation, job.created_unix_s) == (2, 100.0)
    again.close()


def test_a_deleted_job_takes_all_it_held_with_it(store: JobStore, path: str) -> None:
    store.open_generation(A, SPEC, 100.0)
    store.add_step(A, 1, 0, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    store.add_report(A, 1, 0, 0, StoredReport(1.0, b"report"))

    store.delete_job(A)
    store.close()

    connection = sqlite3.connect(path)
    tables = ("jobs", "steps", "plans", "failures", "reports", "kept")
    assert [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables] == [0] * 6
    connection.close()


def test_beyond_the_bytes_the_steps_that_were_submitted_first_are_forgotten_and_unfinished_ones_stay(
    store: JobStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_BYTES", 400_000)
    large = PlannedStep(FIGURES, bytes(100_000))
    for job in (A, B):
        store.open_generation(job, SPEC, 100.0)
    store.add_step(B, 1, 0, BATCH)
    for step in range(6):
        store.add_step(A, 1, step, BATCH)
        store.finish_step(A, 1, step, large)

    kept = [stored.step for stored in store.list_steps(A)]

    assert kept == [3, 4, 5]
    assert [unfinished.job.id.name for unfinished in store.list_unfinished()] == ["b"]
    with pytest.raises(StepForgottenError):
        store.find_step(A, 1, 2)
    store.close()
    assert Path(path).stat().st_size < 700_000


def test_an_owner_who_fills_the_store_loses_steps_of_their_own_and_another_owners_older_ones_stay(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_BYTES", 1_000_000)
    modest, greedy = JobId("modest", "a"), [JobId("greedy", name) for name in "abc"]
    for job in (modest, *greedy):
        store.open_generation(job, SPEC, 100.0)
    for step in range(3):
        store.add_step(modest, 1, step, BATCH)
        store.finish_step(modest, 1, step, PlannedStep(FIGURES, bytes(100_000)))

    for step in range(10):
        for job in greedy:
            store.add_step(job, 1, step, BATCH)
            store.finish_step(job, 1, step, PlannedStep(FIGURES, b"plan"))
            for rank in range(2):  # reports count, too; the second one of a rank replaces the first
                store.add_report(job, 1, step, rank // 2, StoredReport(1.0, bytes(60_000)))

    assert [stored.step for stored in store.list_steps(modest)] == [0, 1, 2]
    kept = [stored.step for job in greedy for stored in store.list_steps(job)]
    assert 8 <= len(kept) <= 12
    assert min(kept) >= 6


def test_a_store_of_a_newer_planner_is_refused_in_one_sentence_and_left_as_it_is(store: JobStore, path: str) -> None:
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    before = Path(path).read_bytes()

    with pytest.raises(StoreError) as caught:
        JobStore(path)

    assert str(caught.value) == (
        f"the store {path} was written by a newer planner (schema {SCHEMA_VERSION + 1}, this one knows "
        f"{SCHEMA_VERSION}): start that planner, or name another file with --store"
    )
    assert Path(path).read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (x)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"other\.sqlite is not a planner's store but the database of another program"):
        JobStore(str(path))

    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)

    with pytest.raises(StoreError, match=r"cannot open the store .*notes\.txt: file is not a database"):
        JobStore(str(path))

    assert path.read_text() == "not a database, " * 100


def test_a_folder_that_cannot_be_made_is_an_error_with_the_path_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"cannot open the store .*/file/planner\.sqlite: "):
        JobStore(str(tmp_path / "file" / "planner.sqlite"))


def test_a_file_that_another_planner_uses_is_refused_until_it_ends(
    store: JobStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinipipe_planner.store_file.LOCK_TIMEOUT_S", 0.05)

    with pytest.raises(StoreError, match="another planner uses it"):
        JobStore(path)

    store.close()
    JobStore(path).close()


def test_a_full_disk_is_a_clear_error_and_what_was_there_stays_whole(
    store: JobStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open_generation(A, SPEC, 100.0)
    for step in (0, 1):
        store.add_step(A, 1, step, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    store.close()
    connect = sqlite3.connect

    def connect_to_full_disk(*args: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]  # passed on
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    with monkeypatch.context() as full:
        full.setattr(sqlite3, "connect", connect_to_full_disk)
        store = JobStore(path)
        with pytest.raises(StoreError, match=r"cannot write the store .*planner\.sqlite: database or disk is full"):
            store.finish_step(A, 1, 1, PlannedStep(FIGURES, bytes(100_000)))
        assert store.load_plan(A, 1, 0) == b"plan"
        store.close()

    assert is_whole(path)
    again = JobStore(path)
    assert [stored.result for stored in again.list_steps(A)] == [FIGURES, None]
    assert again.find_job(A).planned_step_count == 1
    again.finish_step(A, 1, 1, PlannedStep(FIGURES, bytes(100_000)))
    again.close()


def test_a_file_that_is_damaged_inside_is_an_error_and_not_a_crash(store: JobStore, path: str) -> None:
    store.open_generation(A, SPEC, 100.0)
    store.add_step(A, 1, 0, BATCH)
    store.finish_step(A, 1, 0, PlannedStep(FIGURES, bytes(100_000)))
    store.close()
    content = bytearray(Path(path).read_bytes())
    content[4096 * 2 :] = b"\xff" * (len(content) - 4096 * 2)
    Path(path).write_bytes(content)

    again = JobStore(path)
    with pytest.raises(StoreError, match=r"cannot read the store .*malformed"):
        again.list_steps(A)
    again.close()


def test_a_new_file_is_marked_as_a_planners(store: JobStore, path: str) -> None:
    store.close()
    connection = sqlite3.connect(path)

    marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]

    connection.close()
    assert marks == [APPLICATION_ID, SCHEMA_VERSION]


# The tables of jobs and steps as version 1 of the schema had them.
SCHEMA_1 = """
CREATE TABLE jobs (
  serial INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  spec TEXT NOT NULL,
  generation INTEGER NOT NULL,
  created_unix_s REAL NOT NULL,
  submitted_step_count INTEGER NOT NULL DEFAULT 0,
  planned_step_count INTEGER NOT NULL DEFAULT 0,
  forgotten_through INTEGER NOT NULL DEFAULT -1
);
INSERT INTO jobs SELECT serial, name, spec, generation, created_unix_s, submitted_step_count, planned_step_count,
  forgotten_through FROM new_jobs;
"""


def test_a_store_without_counted_bytes_is_taken_over_and_counts_from_then_on(store: JobStore, path: str) -> None:
    store.open_generation(A, SPEC, 100.0)
    store.add_step(A, 1, 0, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    store.close()
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE kept; PRAGMA user_version = 2;")
    connection.close()

    again = JobStore(path)
    again.add_report(A, 1, 0, 0, StoredReport(1.0, b"report"))
    again.close()

    connection = sqlite3.connect(path)
    assert connection.execute("SELECT byte_count FROM kept").fetchall() == [(3 * 8 + len(b"report"),)]
    connection.close()


def test_a_store_of_the_first_version_is_taken_over_with_all_it_holds(store: JobStore, path: str) -> None:
    for name in (A, B):
        store.open_generation(name, SPEC, 100.0)
        store.add_step(name, 1, 0, BATCH)
        store.add_step(name, 1, 1, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    store.add_report(A, 1, 0, 3, StoredReport(2.5, b"report"))
    before = (store.list_jobs(NOBODY), store.list_steps(A), store.list_steps(B), store.list_unfinished())
    store.close()
    connection = sqlite3.connect(path)
    connection.executescript(
        f"PRAGMA legacy_alter_table = ON; ALTER TABLE jobs RENAME TO new_jobs; {SCHEMA_1} DROP TABLE new_jobs;"
        "DROP TABLE kept;"
        "PRAGMA user_version = 1;"
    )
    assert "owner" not in connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'jobs'").fetchone()[0]
    connection.close()

    again = JobStore(path)

    assert (again.list_jobs(NOBODY), again.list_steps(A), again.list_steps(B), again.list_unfinished()) == before
    assert (again.load_plan(A, 1, 0), reports_of(again, 1)) == (b"plan", StoredReports((b"report",), 1))
    again.open_generation(JobId("alice", "a"), SPEC, 200.0)
    again.delete_job(A)
    assert [job.id for job in (*again.list_jobs(NOBODY), *again.list_jobs("alice"))] == [B, JobId("alice", "a")]
    again.close()
    JobStore(path).close()
    assert is_whole(path)
