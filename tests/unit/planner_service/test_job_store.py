"""The store of jobs, steps, plans and reports."""

from collections.abc import Iterator

import pytest

from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner import retention
from infinipipe_planner.authentication import NOBODY
from infinipipe_planner.job_errors import (
    BatchChangedError,
    GenerationError,
    JobNotFoundError,
    StepForgottenError,
    StepNotPlannedError,
)
from infinipipe_planner.job_records import (
    Batch,
    FailedStep,
    JobId,
    JobSpec,
    PlanFigures,
    PlannedStep,
    StoredReport,
    StoredReports,
)
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.options import PlanOptions
from support_service import PROFILE

A, B, C = (JobId(NOBODY, name) for name in "abc")
SPEC = JobSpec(PROFILE, PlanOptions(), 4_096)
BATCH = Batch("digest", (5, 7), 6)
PLANNED = PlannedStep(PlanFigures(3, 1, 2, 1.5, 0.1, 0.2, SolveOutcome.OPTIMAL), b"plan")


@pytest.fixture
def store() -> Iterator[JobStore]:
    made = JobStore()
    made.open_generation(A, SPEC, 100.0)
    yield made
    made.close()


def steps_of(store: JobStore, job: JobId = A) -> list[int]:
    return [stored.step for stored in store.list_steps(job)]


def test_a_new_generation_starts_without_steps_and_keeps_the_creation_time(store: JobStore) -> None:
    store.add_step(A, 1, 0, BATCH)

    job = store.open_generation(A, SPEC, 200.0)

    assert (job.generation, job.created_unix_s, job.submitted_step_count) == (2, 100.0, 0)
    assert steps_of(store) == []


def test_old_and_future_generations_are_refused_with_both_numbers(store: JobStore) -> None:
    store.open_generation(A, SPEC, 200.0)

    with pytest.raises(GenerationError, match="generation 1 is old, the newest is 2"):
        store.find_step(A, 1, 0)
    with pytest.raises(GenerationError, match="generation 3 is unknown, the newest is 2"):
        store.find_step(A, 3, 0)


def test_the_same_batch_may_be_added_twice_and_another_one_not(store: JobStore) -> None:
    assert store.add_step(A, 1, 0, BATCH)
    assert not store.add_step(A, 1, 0, BATCH)
    with pytest.raises(BatchChangedError, match=r"step 0 was submitted with another batch .2 sequences, 12 tokens"):
        store.add_step(A, 1, 0, Batch("other", (5, 7, 1)))


def test_only_the_newest_steps_are_kept_and_older_ones_are_known_to_be_gone(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_STEPS", 3)

    for step in (5, 6, 8, 7):
        store.add_step(A, 1, step, BATCH)

    assert steps_of(store) == [6, 7, 8]
    assert store.find_job(A).submitted_step_count == 4
    with pytest.raises(StepForgottenError, match="step 5 is no longer kept, only the newest 3 steps are"):
        store.find_step(A, 1, 5)
    with pytest.raises(StepForgottenError):
        store.add_step(A, 1, 4, BATCH)
    assert store.find_step(A, 1, 9) is None


def test_planned_steps_are_counted_and_failed_ones_not(store: JobStore) -> None:
    for step in range(3):
        store.add_step(A, 1, step, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    store.finish_step(A, 1, 1, FailedStep("INTERNAL", "no"))

    job = store.find_job(A)

    assert (job.submitted_step_count, job.planned_step_count) == (3, 1)


def test_a_result_for_a_forgotten_step_or_generation_or_job_changes_nothing(store: JobStore) -> None:
    store.add_step(A, 1, 0, BATCH)
    store.open_generation(A, SPEC, 200.0)
    store.add_step(A, 2, 0, BATCH)

    for job, generation, step in ((A, 1, 0), (A, 2, 1), (B, 1, 0)):
        store.finish_step(job, generation, step, PLANNED)

    stored = store.find_step(A, 2, 0)
    assert stored is not None
    assert stored.result is None
    assert store.find_job(A).planned_step_count == 0


def test_a_report_needs_a_plan_and_a_second_one_of_the_same_rank_replaces_the_first(store: JobStore) -> None:
    store.add_step(A, 1, 0, BATCH)
    with pytest.raises(StepNotPlannedError, match="step 0 has no plan to report about"):
        store.add_report(A, 1, 0, 0, StoredReport(1.0, b"first"))
    store.finish_step(A, 1, 0, PLANNED)

    store.add_report(A, 1, 0, 0, StoredReport(1.0, b"first"))
    store.add_report(A, 1, 0, 0, StoredReport(2.0, b"second"))

    assert store.load_plan(A, 1, 0) == b"plan"
    assert store.load_reports(A, 1, 0, after_rank=-1, most_bytes=1_000) == StoredReports((b"second",), 1)
    (stored,) = store.list_steps(A)
    assert (stored.result, stored.measured_s) == (PLANNED.figures, 2.0)


def test_a_deleted_job_is_gone_and_its_name_is_another_job_afterwards(store: JobStore) -> None:
    serial = store.find_job(A).serial

    store.delete_job(A)

    with pytest.raises(JobNotFoundError, match="there is no job 'a'"):
        store.find_job(A)
    with pytest.raises(JobNotFoundError):
        store.delete_job(A)
    assert store.open_generation(A, SPEC, 300.0).serial != serial


def test_jobs_are_listed_by_name(store: JobStore) -> None:
    store.open_generation(C, SPEC, 100.0)
    store.open_generation(B, SPEC, 100.0)

    assert [job.id.name for job in store.list_jobs(NOBODY)] == ["a", "b", "c"]


def test_reports_come_in_parts_of_so_many_bytes_and_a_large_one_alone(store: JobStore) -> None:
    store.add_step(A, 1, 0, BATCH)
    store.finish_step(A, 1, 0, PLANNED)
    sizes = {rank: 1_000 if rank == 7 else 10 for rank in range(40)}
    for rank, size in sizes.items():
        store.add_report(A, 1, 0, rank, StoredReport(1.0, bytes([rank]) * size))

    parts, after_rank = [], -1
    while after_rank < 39:
        reports = store.load_reports(A, 1, 0, after_rank=after_rank, most_bytes=250)
        assert reports.report_count == 40
        parts.append([report[0] for report in reports.encoded_reports])
        after_rank = parts[-1][-1]

    assert parts == [[*range(7)], [7], [*range(8, 33)], [*range(33, 40)]]
    assert store.load_reports(A, 1, 0, after_rank=39, most_bytes=250) == StoredReports((), 40)
