"""What the service remembers: jobs, their newest generation, its steps with plans and reports.

Held in memory and touched from one event loop only. Plans and reports are kept encoded: as bytes they are an order of
magnitude smaller than as objects, and a store on disk would hold the same.

    JobStoreError                     anything below
      JobNotFoundError                no job of that name
      GenerationError                 the caller's generation is not the newest
      BatchChangedError               a step was submitted again with another batch
      StepForgottenError              the step is older than the newest KEPT_STEPS
      StepNotPlannedError             a report for a step that has no plan
"""

import itertools
from dataclasses import dataclass, field

from infinipipe_contract.plan import SolveOutcome
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import PlannerError
from infinipipe_planner.options import PlanOptions

KEPT_STEPS = 1_000
"""Steps kept per job: a plan of 512 sequences takes about 0.1 MB, so a job stays in the order of 100 MB."""


class JobStoreError(PlannerError):
    """Base of what the store refuses."""


class JobNotFoundError(JobStoreError):
    """There is no job of that name."""


class GenerationError(JobStoreError):
    """The caller's generation is not the job's newest one."""


class BatchChangedError(JobStoreError):
    """A step was submitted again with another batch."""


class StepForgottenError(JobStoreError):
    """The step is older than the steps that are kept."""


class StepNotPlannedError(JobStoreError):
    """A report came for a step that has no plan."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job trains with: cost model, way of planning and longest sequence in tokens."""

    profile: Profile
    options: PlanOptions
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What identifies one step's batch and what is told about it.

    Attributes:
        digest: Hash of lengths and target count; equal batches have equal digests.
        sequence_count: Sequences of the batch.
        token_count: Tokens of the batch.
    """

    digest: str
    sequence_count: int
    token_count: int


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step's plan, encoded, with the figures that lists show."""

    encoded_plan: bytes
    chunk_count: int
    pipeline_count: int
    slice_count: int
    makespan_s: float
    bubble_ratio: float
    solve_s: float
    outcome: SolveOutcome


@dataclass(frozen=True, slots=True)
class FailedStep:
    """Why a step has no plan: the gRPC status by name and the sentence that every waiter gets."""

    status_name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StoredReport:
    """What one rank measured: its step time, and the whole report encoded."""

    step_s: float
    encoded_report: bytes


@dataclass(slots=True)
class StoredStep:
    """A submitted step; ``result`` is None while it is being planned."""

    step: int
    batch: Batch
    result: PlannedStep | FailedStep | None = None
    reports: dict[int, StoredReport] = field(default_factory=dict)


@dataclass(slots=True)
class StoredJob:
    """A job in its newest generation.

    Attributes:
        name: Unique name.
        serial: Tells apart two jobs that had the same name one after the other.
        spec: What the newest generation trains with.
        generation: Newest generation, from 1.
        created_unix_s: When the job was created, in seconds since the epoch.
        steps: Kept steps by number.
        submitted_step_count: Steps submitted in this generation, the forgotten ones too.
        planned_step_count: Steps planned in this generation, the forgotten ones too.
        forgotten_through: Newest step that is no longer kept; -1 when all are.
    """

    name: str
    serial: int
    spec: JobSpec
    generation: int
    created_unix_s: float
    steps: dict[int, StoredStep] = field(default_factory=dict)
    submitted_step_count: int = 0
    planned_step_count: int = 0
    forgotten_through: int = -1


class JobStore:
    """Jobs by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, StoredJob] = {}
        self._serials = itertools.count(1)

    def open_generation(self, name: str, spec: JobSpec, created_unix_s: float) -> StoredJob:
        """Create the job, or open its next generation, which starts without steps."""
        known = self._jobs.get(name)
        if known is None:
            job = StoredJob(name, next(self._serials), spec, 1, created_unix_s)
        else:
            job = StoredJob(name, known.serial, spec, known.generation + 1, known.created_unix_s)
        self._jobs[name] = job
        return job

    def find_job(self, name: str) -> StoredJob:
        """Return the job.

        Raises:
            JobNotFoundError: If there is none of that name.
        """
        job = self._jobs.get(name)
        if job is None:
            raise JobNotFoundError(f"there is no job {name!r}")
        return job

    def list_jobs(self) -> list[StoredJob]:
        """Return all jobs by name."""
        return [self._jobs[name] for name in sorted(self._jobs)]

    def delete_job(self, name: str) -> None:
        """Forget a job and all it holds.

        Raises:
            JobNotFoundError: If there is none of that name.
        """
        self.find_job(name)
        del self._jobs[name]

    def find_generation(self, name: str, generation: int) -> StoredJob:
        """Return the job if the generation is its newest.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is another one; the message names both.
        """
        job = self.find_job(name)
        if generation != job.generation:
            age = "old" if generation < job.generation else "unknown"
            raise GenerationError(
                f"job {name!r}: generation {generation} is {age}, the newest is {job.generation}; "
                "a restarted executor opens a new generation"
            )
        return job

    def find_step(self, name: str, generation: int, step: int) -> StoredStep | None:
        """Return a step, or None when it was not submitted yet.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
        """
        job = self.find_generation(name, generation)
        if step <= job.forgotten_through:
            raise StepForgottenError(
                f"job {name!r}: step {step} is no longer kept, only the newest {KEPT_STEPS} steps are"
            )
        return job.steps.get(step)

    def add_step(self, name: str, generation: int, step: int, batch: Batch) -> bool:
        """Remember a submitted batch.

        Returns:
            True when the step is new, False when the same batch was submitted before.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
            BatchChangedError: If the step was submitted with another batch.
        """
        known = self.find_step(name, generation, step)
        if known is not None:
            if known.batch != batch:
                raise BatchChangedError(
                    f"job {name!r}, generation {generation}: step {step} was submitted with another batch "
                    f"({known.batch.sequence_count} sequences, {known.batch.token_count} tokens; "
                    f"now {batch.sequence_count} and {batch.token_count})"
                )
            return False
        job = self.find_job(name)
        job.steps[step] = StoredStep(step, batch)
        job.submitted_step_count += 1
        if len(job.steps) > KEPT_STEPS:
            job.forgotten_through = min(job.steps)
            del job.steps[job.forgotten_through]
        return True

    def finish_step(self, name: str, generation: int, step: int, result: PlannedStep | FailedStep) -> None:
        """Keep how planning a step ended; what was forgotten meanwhile stays forgotten."""
        job = self._jobs.get(name)
        if job is not None and job.generation == generation and step in job.steps:
            job.steps[step].result = result
            job.planned_step_count += isinstance(result, PlannedStep)

    def add_report(self, name: str, generation: int, step: int, rank: int, report: StoredReport) -> None:
        """Keep what a rank measured; a second report of the same rank replaces the first.

        Raises:
            JobNotFoundError: If there is no such job.
            GenerationError: If the generation is not the newest.
            StepForgottenError: If the step is older than the kept ones.
            StepNotPlannedError: If the step has no plan.
        """
        stored = self.find_step(name, generation, step)
        if stored is None or not isinstance(stored.result, PlannedStep):
            raise StepNotPlannedError(f"job {name!r}, generation {generation}: step {step} has no plan to report about")
        stored.reports[rank] = report
