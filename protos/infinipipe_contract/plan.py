"""The plan as plain data: slices, chunks, actions, stages, pipelines.

Everything here is immutable and knows nothing of time or memory; ``cost_model`` and ``simulate`` do.
"""

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Slice(NamedTuple):
    """A contiguous part of a sequence.

    Attributes:
        sequence_index: Index of the sequence in the batch, from 0.
        start_token: First token within the sequence; the tokens before it are the slice's context.
        length_tokens: Tokens of the slice, at least 1.
    """

    sequence_index: int
    start_token: int
    length_tokens: int

    @property
    def end_token(self) -> int:
        """First token of the sequence behind the slice."""
        return self.start_token + self.length_tokens


class Chunk(NamedTuple):
    """The micro-batch of elastic pipeline parallelism {C, S} (paper, III-A1).

    Attributes:
        slices: Slices in token order; at most one of them has context.
    """

    slices: tuple[Slice, ...]

    @property
    def token_count(self) -> int:
        """Tokens of all slices."""
        return sum(piece.length_tokens for piece in self.slices)

    @property
    def context_tokens(self) -> int:
        """Tokens before the slice that has context (paper: C); 0 when none has."""
        return max((piece.start_token for piece in self.slices), default=0)


class ChunkKind(enum.Enum):
    """The three types of chunk (paper, III-A1)."""

    BATCHED = "batched"
    SPLIT = "split"
    HYBRID = "hybrid"


class ActionKind(enum.Enum):
    """Direction of a pass; the value is its letter in text grids."""

    FORWARD = "F"
    BACKWARD = "B"


class Action(NamedTuple):
    """One pass of one chunk over one stage.

    Attributes:
        kind: Direction of the pass.
        chunk_index: Chunk of the same pipeline, from 0.
        recompute_layer_count: Layers of the stage recomputed in the backward pass; set on the forward action.
    """

    kind: ActionKind
    chunk_index: int
    recompute_layer_count: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One 1F1B run over a group of sequences.

    Attributes:
        chunks: Chunks in forward order.
        stages: The actions of every stage in the order they run.
        replica_index: Replica of the pipeline that runs it, from 0.
    """

    chunks: tuple[Chunk, ...]
    stages: tuple[tuple[Action, ...], ...]
    replica_index: int = 0


class ChunkId(NamedTuple):
    """A chunk of a plan."""

    pipeline_index: int
    chunk_index: int


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """What the cost model expects of one stage: busy and recompute seconds, peak bytes of one device."""

    busy_s: float
    recompute_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the cost model expects of a plan.

    Attributes:
        makespan_s: Seconds from the first action's start to the last one's end.
        ideal_s: Seconds of the work alone, spread evenly.
        bubble_ratio: Idle share of the makespan, mean over the stages of all replicas.
        recompute_ratio: Recompute share of the busy time.
        stages: One entry a stage of every replica: the stages of replica 0 first, then those of replica 1.
    """

    makespan_s: float
    ideal_s: float
    bubble_ratio: float
    recompute_ratio: float
    stages: tuple[StageEstimate, ...]


class SolveOutcome(enum.Enum):
    """How certain the recompute of a plan is: three outcomes, never two. A plan without a solver is a fallback."""

    OPTIMAL = "optimal"
    BEST_FOUND = "best found"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One candidate of the sweep.

    Attributes:
        name: What was tried, in the policy's own words.
        slice_count: Slices of the longest sequence; 0 when the candidate does not fit.
        makespan_s: Predicted seconds; 0 when the candidate does not fit.
        infeasible_reason: Why it does not fit; empty when it does.
        solve_s: Seconds it took to solve.
        replica_index: Replica whose share of the batch it plans; the other fields are about that share alone.
    """

    name: str
    slice_count: int
    makespan_s: float
    infeasible_reason: str
    solve_s: float
    replica_index: int = 0


@dataclass(frozen=True, slots=True)
class SolveReport:
    """How a plan was found.

    Attributes:
        outcome: How certain the recompute is.
        solve_s: Wall-clock seconds of the whole search.
        slice_count: Slices of the longest sequence in the chosen candidate (paper: K).
        gap_ratio: Largest relative gap among its recompute problems.
        candidates: Every candidate tried, in the order they were tried.
        fallback_reason: Why the plan was made without a solver; empty when it was solved.
    """

    outcome: SolveOutcome
    solve_s: float
    slice_count: int
    gap_ratio: float = 0.0
    candidates: tuple[CandidateReport, ...] = ()
    fallback_reason: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Everything the executor needs to run one training step.

    Attributes:
        job: Job the plan belongs to; empty without one.
        generation: Generation of the job's executor; 0 without a job.
        step: Training step, from 0.
        policy: Policy that made the plan.
        pipelines: Those of all replicas; every stage runs those of its replica one after the other, without a barrier
            between them.
        target_token_count: Tokens of the batch that have a target; the loss is divided by it once.
        estimate: What the cost model expects.
        report: How the plan was found.
        digest: SHA-256 of the executable part, see ``plan_digest``; filled by ``build_plan``.
    """

    job: str
    generation: int
    step: int
    policy: str
    pipelines: tuple[Pipeline, ...]
    target_token_count: int
    estimate: Estimate
    report: SolveReport
    digest: str = field(default="")

    @property
    def stage_count(self) -> int:
        """Stages of the plan; 0 for a plan without pipelines."""
        return len(self.pipelines[0].stages) if self.pipelines else 0

    @property
    def replica_count(self) -> int:
        """Replicas that the plan speaks of: those with a pipeline, and those for which the estimate has stages."""
        with_pipeline = max((pipeline.replica_index + 1 for pipeline in self.pipelines), default=0)
        return max(with_pipeline, len(self.estimate.stages) // max(self.stage_count, 1))

    def placed_estimates(self) -> Iterator[tuple[int, int, StageEstimate]]:
        """Give what is expected of every stage of every replica: replica, stage, estimate."""
        for index, stage in enumerate(self.estimate.stages):
            yield *divmod(index, max(self.stage_count, 1)), stage

    @property
    def chunk_count(self) -> int:
        """Chunks over all pipelines."""
        return sum(len(pipeline.chunks) for pipeline in self.pipelines)

    def chunk(self, chunk_id: ChunkId) -> Chunk:
        """Return the chunk of that id."""
        return self.pipelines[chunk_id.pipeline_index].chunks[chunk_id.chunk_index]


def default_target_token_count(lengths_tokens: Iterable[int]) -> int:
    """Count the targets of a batch without masks: every token but the last of each sequence."""
    return sum(length - 1 for length in lengths_tokens)


def plan_digest(plan: ExecutionPlan) -> str:
    """Hash everything that decides what runs: identity, pipelines, target count; not the estimate or the report.

    Returns:
        SHA-256 in hexadecimal. The text that is hashed is spelled out here, so that it depends on no library.
    """
    digest = hashlib.sha256()

    def feed(*values: object) -> None:
        digest.update(("|".join(map(str, values)) + "\n").encode())

    feed("infinipipe.plan.v1", plan.job, plan.generation, plan.step, plan.policy, plan.target_token_count)
    for pipeline in plan.pipelines:
        replica = (pipeline.replica_index,) if pipeline.replica_index else ()
        feed("pipeline", len(pipeline.chunks), len(pipeline.stages), *replica)
        for chunk in pipeline.chunks:
            feed("chunk", *(f"{s.sequence_index}:{s.start_token}+{s.length_tokens}" for s in chunk.slices))
        for actions in pipeline.stages:
            feed("stage", *(f"{a.kind.value}{a.chunk_index}r{a.recompute_layer_count}" for a in actions))
    return digest.hexdigest()


def slices_by_sequence(chunks: Sequence[Chunk]) -> dict[int, list[tuple[Slice, int]]]:
    """Collect the slices of every sequence with the index of their chunk, in token order."""
    pieces: dict[int, list[tuple[Slice, int]]] = {}
    for chunk_index, chunk in enumerate(chunks):
        for piece in chunk.slices:
            pieces.setdefault(piece.sequence_index, []).append((piece, chunk_index))
    for of_sequence in pieces.values():
        of_sequence.sort(key=lambda entry: entry[0].start_token)
    return pieces


def kept_chunks(chunks: Sequence[Chunk]) -> frozenset[int]:
    """Find the chunks whose keys and values stay because a later slice of the same sequence attends to them.

    These are the chunks for which the paper's text keeps the key/value terms of Eqs. 5 and 9 (its formulas invert
    the sign of the indicator).
    """
    return frozenset(index for pieces in slices_by_sequence(chunks).values() for _, index in pieces[:-1])


def chunk_kinds(chunks: Sequence[Chunk]) -> list[ChunkKind]:
    """Name the kind of every chunk of a pipeline (paper, III-A1).

    Batched: whole sequences only. Split: one part of a sequence alone. Hybrid: a part of a sequence packed with others.
    """
    partial = {piece for pieces in slices_by_sequence(chunks).values() if len(pieces) > 1 for piece, _ in pieces}
    kinds = []
    for chunk in chunks:
        if not any(piece in partial or piece.start_token > 0 for piece in chunk.slices):
            kinds.append(ChunkKind.BATCHED)
        else:
            kinds.append(ChunkKind.SPLIT if len(chunk.slices) == 1 else ChunkKind.HYBRID)
    return kinds
