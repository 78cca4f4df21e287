"""What the service remembers: jobs, their newest generation, its steps with batches, plans, failures and reports.

Kept in one SQLite file (see ``store_file.py``), or in memory, and touched from one event loop only. Plans and reports
are kept encoded. What is forgotten is the business of ``retention.py``.
"""

import array
import sqlite3

from infinipipe_planner import retention
from infinipipe_planner.config import MAX_JOBS
from infinipipe_planner.job_errors import (
    BatchChangedError,
    GenerationError,
    JobNotFoundError,
    StepForgottenError,
    StepNotPlannedError,
    TooManyJobsError,
)
from infinipipe_planner.job_records import (
    Batch,
    FailedStep,
    JobId,
    JobSpec,
    PlanFigures,
    PlannedStep,
    StoredJob,
    StoredReport,
    StoredReports,
    StoredStep,
    UnfinishedStep,
)
from infinipipe_planner.job_rows import JOB_COLUMNS, SELECT_STEP, read_job, read_step, write_spec
from infinipipe_planner.store_file import MEMORY, StoreFile

_REPORTS_AT_ONCE = 16
"""Reports read at once: a single one may be large, and no more than are asked for are held in memory."""

_STEP_ID = "(SELECT id FROM steps WHERE job_serial = ? AND step = ?)"


class JobStore:
    """Jobs by owner and name.

    Args:
        path: SQLite file; by default nothing outlives the store.
        max_jobs: Jobs of one owner that are kept.

    Raises:
        StoreError: If the file cannot be opened. Every method raises it when the file cannot be read or written.
    """

    def __init__(self, path: str = MEMORY, max_jobs: int = MAX_JOBS) -> None:
        self._file = StoreFile(path)
        self._max_jobs = max_jobs

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def open_generation(self, job_id: JobId, spec: JobSpec, created_unix_s: float) -> StoredJob:
        """Create the job, or open its next generation, which starts without steps.

        Raises:
            TooManyJobsError: If it is new and its owner has as many as are kept.
        """
        with self._file.writing() as connection:
            deleted = "DELETE FROM steps WHERE job_serial = (SELECT serial FROM jobs WHERE owner = ? AND name = ?)"
            connection.execute(deleted, job_id)
            connection.execute(
                """INSERT INTO jobs (owner, name, spec, generation, created_unix_s) VALUES (?, ?, ?, 1, ?)
                ON CONFLICT (owner, name) DO UPDATE SET spec = excluded.spec, generation = generation + 1,
                submitted_step_count = 0, planned_step_count = 0, forgotten_through = -1""",
                (*job_id, write_spec(spec), created_unix_s),
            )
            self._require_room(connection, job_id.owner)
        return self.find_job(job_id)

    def find_job(self, job_id: JobId) -> StoredJob:
        """Return the job.

        Raises:
            JobNotFoundError: If its owner has none of that name.
        """
        rows = self._file.read(f"SELECT {JOB_COLUMNS} FROM jobs WHERE owner = ? AND name = ?", job_id)
        if not rows:
            raise JobNotFoundError(f"there is no job {job_id.name!r}")
        return read_job(rows[0])

    def list_jobs(self, owner: str) -> list[StoredJob]:
        """Return all jobs of an owner by name."""
        rows = self._file.read(f"SELECT {JOB_COLUMNS} FROM jobs WHERE owner = ? ORDER BY name", (owner,))
        return [read_job(row) for row in rows]

    def count_jobs(self) -> int:
        """Count the jobs of all owners."""
        count: int = self._file.read("SELECT count(*) FROM jobs")[0][0]
        return count

    def list_steps(self, job_id: JobId) -> list[StoredStep]:
        """Return the kept steps of a job in their order.

        Raises:
            JobNotFoundError: If there is no such job.
        """
        return [
            read_step(row) for row in self._file.read(f"{SELECT_STEP} ORDER BY step", (self.find_job(job_id).serial,))
        ]

    def list_unfinished(self) -> list[UnfinishedStep]:
        """Return the steps of all jobs that wait for their plan, in the order of their submission."""
        rows = self._file.read(
            """SELECT owner, name, step, digest, lengths_tokens, target_token_count
            FROM steps JOIN jobs ON serial = job_serial
            WHERE id NOT IN (SELECT step_id FROM plans) AND id NOT IN (SELECT step_id FROM failures) ORDER BY id"""
        )
        return [
            UnfinishedStep(
                self.find_job(JobId(owner, name)), step, Batch(digest, tuple(array.array("q", lengths)), target_count)
            )
            for owner, name, step, digest, lengths, target_count in rows
        ]

    def delete_job(self, job_id: JobId) -> None:
        """Forget a job and all it holds.

        Raises:
            JobNotFoundError: If there is none of that name.
        """
        serial = self.find_job(job_id).serial
        with self._file.writing() as connection:
            connection.execute("DELETE FROM jobs WHERE serial = ?", (serial,))

    def find_generation(self, job_id: JobId, generation: int) -> StoredJob:
        """Return the job if the generation is its newest.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is another one; the message names both.
        """
        job = self.find_job(job_id)
        if generation != job.generation:
            age = "old" if generation < job.generation else "unknown"
            raise GenerationError(
                f"job {job_id.name!r}: generation {generation} is {age}, the newest is {job.generation}; "
                "a restarted executor opens a new generation"
            )
        return job

    def find_step(self, job_id: JobId, generation: int, step: int) -> StoredStep | None:
        """Return a step, or None when it was not submitted yet.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
        """
        job = self.find_generation(job_id, generation)
        if step <= job.forgotten_through:
            raise StepForgottenError(
                f"job {job_id.name!r}: step {step} is no longer kept, only the newest {retention.KEPT_STEPS} steps are"
            )
        rows = self._file.read(f"{SELECT_STEP} AND step = ?", (job.serial, step))
        return read_step(rows[0]) if rows else None

    def load_plan(self, job_id: JobId, generation: int, step: int) -> bytes:
        """Return the encoded plan of a planned step.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepNotPlannedError: If the step has no plan.
        """
        key = (self.find_generation(job_id, generation).serial, step)
        plans = self._file.read(f"SELECT encoded_plan FROM plans WHERE step_id = {_STEP_ID}", key)
        if not plans:
            raise StepNotPlannedError(f"job {job_id.name!r}, generation {generation}: step {step} has no plan")
        encoded_plan: bytes = plans[0][0]
        return encoded_plan

    def load_reports(
        self, job_id: JobId, generation: int, step: int, *, after_rank: int, most_bytes: int
    ) -> StoredReports:
        """Return what ranks above one reported about a step: the first reports of so many bytes, or the first alone.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
        """
        key = (self.find_generation(job_id, generation).serial, step)
        (report_count,) = self._file.read(f"SELECT count(*) FROM reports WHERE step_id = {_STEP_ID}", key)[0]
        encoded, byte_count = list[bytes](), 0
        while True:
            rows = self._file.read(
                f"SELECT rank, encoded_report FROM reports WHERE step_id = {_STEP_ID} AND rank > ? ORDER BY rank "
                f"LIMIT {_REPORTS_AT_ONCE}",
                (*key, after_rank),
            )
            for rank, report in rows:
                byte_count += len(report)
                if byte_count > most_bytes and encoded:
                    return StoredReports(tuple(encoded), report_count)
                encoded.append(report)
                after_rank = rank
            if len(rows) < _REPORTS_AT_ONCE:
                return StoredReports(tuple(encoded), report_count)

    def add_step(self, job_id: JobId, generation: int, step: int, batch: Batch) -> bool:
        """Remember a submitted batch.

        Returns:
            True when the step is new, False when the same batch was submitted before.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
            BatchChangedError: If the step was submitted with another batch.
        """
        known = self.find_step(job_id, generation, step)
        count, tokens = len(batch.lengths_tokens), sum(batch.lengths_tokens)
        if known is not None:
            if known.digest != batch.digest:
                raise BatchChangedError(
                    f"job {job_id.name!r}, generation {generation}: step {step} was submitted with another batch "
                    f"({known.sequence_count} sequences, {known.token_count} tokens; now {count} and {tokens})"
                )
            return False
        serial = self.find_job(job_id).serial
        lengths = array.array("q", batch.lengths_tokens).tobytes()
        with self._file.writing() as connection:
            step_id = connection.execute(
                """INSERT INTO steps (job_serial, step, digest, sequence_count, token_count, target_token_count,
                lengths_tokens) VALUES (?, ?, ?, ?, ?, ?, ?)""",
                (serial, step, batch.digest, count, tokens, batch.target_token_count, lengths),
            ).lastrowid
            assert step_id is not None
            retention.count_bytes(connection, serial, step_id, len(lengths))
            connection.execute(
                "UPDATE jobs SET submitted_step_count = submitted_step_count + 1 WHERE serial = ?", (serial,)
            )
            retention.forget_old_steps(connection, serial)
        return True

    def finish_step(self, job_id: JobId, generation: int, step: int, result: PlannedStep | FailedStep) -> None:
        """Keep how planning a step ended; what was forgotten meanwhile stays forgotten."""
        with self._file.writing() as connection:
            row = connection.execute(
                "SELECT id, serial FROM steps JOIN jobs ON serial = job_serial WHERE owner = ? AND name = ? "
                "AND generation = ? AND step = ?",
                (*job_id, generation, step),
            ).fetchone()
            if row is None:
                return
            step_id, serial = row
            if isinstance(result, FailedStep):
                connection.execute(
                    "INSERT INTO failures VALUES (?, ?, ?)", (step_id, result.status_name, result.sentence)
                )
                return
            figures = result.figures
            connection.execute(
                "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    step_id,
                    figures.chunk_count,
                    figures.pipeline_count,
                    figures.slice_count,
                    figures.makespan_s,
                    figures.bubble_ratio,
                    figures.solve_s,
                    figures.outcome.name,
                    result.encoded_plan,
                ),
            )
            connection.execute(
                "UPDATE jobs SET planned_step_count = planned_step_count + 1 WHERE serial = ?", (serial,)
            )
            retention.count_bytes(connection, serial, step_id, len(result.encoded_plan))
            retention.forget_bytes(connection, self._file.used_bytes)

    def add_report(self, job_id: JobId, generation: int, step: int, rank: int, report: StoredReport) -> None:
        """Keep what a rank measured; a second report of the same rank replaces the first.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
            StepNotPlannedError: If the step has no plan.
        """
        stored = self.find_step(job_id, generation, step)
        if stored is None or not isinstance(stored.result, PlanFigures):
            raise StepNotPlannedError(
                f"job {job_id.name!r}, generation {generation}: step {step} has no plan to report about"
            )
        serial = self.find_job(job_id).serial
        with self._file.writing() as connection:
            (step_id,) = connection.execute(f"SELECT {_STEP_ID}", (serial, step)).fetchone()
            replaced = connection.execute(
                "SELECT length(encoded_report) FROM reports WHERE step_id = ? AND rank = ?", (step_id, rank)
            ).fetchone()
            connection.execute(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?)",
                (step_id, rank, report.step_s, report.encoded_report),
            )
            grown_by = len(report.encoded_report) - (replaced[0] if replaced else 0)
            retention.count_bytes(connection, serial, step_id, grown_by)
            retention.forget_bytes(connection, self._file.used_bytes)

    def _require_room(self, connection: sqlite3.Connection, owner: str) -> None:
        """Take a job back that is one too many."""
        (count,) = connection.execute("SELECT count(*) FROM jobs WHERE owner = ?", (owner,)).fetchone()
        if count > self._max_jobs:
            raise TooManyJobsError(
                f"{count - 1} jobs are kept, at most {self._max_jobs} may be (--max-jobs of the planner): "
                "delete those that are over"
            )
