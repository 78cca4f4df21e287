"""Rows of the job store's tables as records, and back."""

import dataclasses
import functools
import json
from typing import Any

from infinipipe_contract.codec import profile_from_json, profile_to_json
from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.job_records import FailedStep, JobId, JobSpec, PlanFigures, StoredJob, StoredStep
from infinipipe_planner.options import PlanOptions

JOB_COLUMNS = """serial, owner, name, spec, generation, created_unix_s, submitted_step_count, planned_step_count,
  forgotten_through"""

SELECT_STEP = """
SELECT steps.step, digest, sequence_count, token_count, status_name, sentence,
  chunk_count, pipeline_count, slice_count, makespan_s, bubble_ratio, solve_s, outcome,
  (SELECT max(step_s) FROM reports WHERE reports.step_id = steps.id)
FROM steps LEFT JOIN plans ON plans.step_id = steps.id LEFT JOIN failures ON failures.step_id = steps.id
WHERE job_serial = ?"""


def write_spec(spec: JobSpec) -> str:
    """Write what a job trains with as text."""
    return json.dumps(
        {
            "profile": profile_to_json(spec.profile),
            "options": dataclasses.asdict(spec.options),
            "context_tokens": spec.context_tokens,
        }
    )


@functools.lru_cache(maxsize=256)
def _read_spec(text: str) -> JobSpec:
    fields = json.loads(text)
    return JobSpec(profile_from_json(fields["profile"]), PlanOptions(**fields["options"]), fields["context_tokens"])


def read_job(row: Any) -> StoredJob:  # noqa: ANN401  # a row of the database
    """Read a row of ``JOB_COLUMNS``."""
    serial, owner, name, spec, *rest = row
    return StoredJob(serial, JobId(owner, name), _read_spec(spec), *rest)


def read_step(row: Any) -> StoredStep:  # noqa: ANN401  # a row of the database
    """Read a row of ``SELECT_STEP``."""
    step, digest, sequence_count, token_count, status_name, sentence, *figures, measured_s = row
    result: PlanFigures | FailedStep | None = None
    if status_name is not None:
        result = FailedStep(status_name, sentence)
    elif figures[0] is not None:
        chunk_count, pipeline_count, slice_count, makespan_s, bubble_ratio, solve_s, outcome = figures
        result = PlanFigures(
            chunk_count, pipeline_count, slice_count, makespan_s, bubble_ratio, solve_s, SolveOutcome[outcome]
        )
    return StoredStep(step, digest, sequence_count, token_count, result, measured_s or 0.0)
