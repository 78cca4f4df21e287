"""What the job store takes and hands out."""

from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.plan import SolveOutcome
from infinipipe_contract.profile import Profile
from infinipipe_planner.options import PlanOptions


class JobId(NamedTuple):
    """Whose job it is and how they call it: names of different owners do not meet."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else self.name


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job trains with: cost model, way of planning and longest sequence in tokens."""

    profile: Profile
    options: PlanOptions
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's batch as it was submitted.

    Attributes:
        digest: Hash of lengths and target count; equal batches have equal digests.
        lengths_tokens: Length of every sequence.
        target_token_count: Tokens with a target; None means every token but the last of each sequence.
    """

    digest: str
    lengths_tokens: tuple[int, ...]
    target_token_count: int | None = None


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What lists show about a plan."""

    chunk_count: int
    pipeline_count: int
    slice_count: int
    makespan_s: float
    bubble_ratio: float
    solve_s: float
    outcome: SolveOutcome


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step's plan, encoded, with its figures."""

    figures: PlanFigures
    encoded_plan: bytes


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


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A submitted step, without what is large about it.

    Attributes:
        step: Its number.
        digest: Of the batch.
        sequence_count: Sequences of the batch.
        token_count: Tokens of the batch.
        result: How planning ended; None while it has not.
        measured_s: Longest step time that a rank reported; 0 before.
    """

    step: int
    digest: str
    sequence_count: int
    token_count: int
    result: PlanFigures | FailedStep | None
    measured_s: float


@dataclass(frozen=True, slots=True)
class StoredReports:
    """What ranks reported about a step, by rank and encoded, and how many ranks did; it may be a part of them."""

    encoded_reports: tuple[bytes, ...]
    report_count: int


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that was submitted and has neither a plan nor a failure yet."""

    job: "StoredJob"
    step: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job in its newest generation.

    Attributes:
        serial: Tells apart two jobs that had the same name one after the other.
        id: Its owner and its name.
        spec: What the newest generation trains with.
        generation: Newest generation, from 1.
        created_unix_s: When the job was created, in seconds since the epoch; shown, never reckoned with.
        submitted_step_count: Steps submitted in this generation, the forgotten ones too.
        planned_step_count: Steps planned in this generation, the forgotten ones too.
        forgotten_through: Newest step that is no longer kept; -1 when all are.
    """

    serial: int
    id: JobId
    spec: JobSpec
    generation: int
    created_unix_s: float
    submitted_step_count: int
    planned_step_count: int
    forgotten_through: int
