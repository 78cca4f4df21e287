"""What a policy is: a sweep over candidates, each of which knows how to build itself, here or in a worker process."""

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from infinipipe_contract.plan import CandidateReport, Pipeline, SolveOutcome
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions


@dataclass(frozen=True, slots=True)
class Candidate:
    """Pipelines of one candidate.

    Attributes:
        pipelines: In the order they run; they hold every token once and fit in memory.
        outcome: How certain their recompute is, the least certain of them.
        gap_ratio: Largest gap among their recompute problems.
    """

    pipelines: tuple[Pipeline, ...]
    outcome: SolveOutcome = SolveOutcome.OPTIMAL
    gap_ratio: float = 0.0


class CandidateSpec(Protocol):
    """What a policy varies from one candidate to the next; immutable and small, for it travels to workers."""

    @property
    def name(self) -> str:
        """How reports call the candidate, for example ``K=3``."""
        ...

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:
        """Build the candidate.

        Args:
            lengths_tokens: Tokens of every sequence, each at least 1.
            profile: Cost model and memory.
            limits: When a solver may stop.

        Raises:
            InfeasibleBatchError: If the batch does not fit in memory this way.
        """
        ...


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """Everything a worker needs to build one candidate."""

    lengths_tokens: tuple[int, ...]
    profile: Profile
    limits: IlpLimits
    spec: CandidateSpec


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A built candidate, or why there is none; exactly one of ``candidate`` and ``shortage`` is set."""

    spec: CandidateSpec
    report: CandidateReport
    candidate: Candidate | None = None
    shortage: InfeasibleBatchError | None = None


CandidateRunner = Callable[[Sequence[CandidateRequest]], list[CandidateResult]]
"""Builds candidates, wherever, and returns the results in the order of the requests."""


Sweep = Generator[Sequence[CandidateRequest], list[CandidateResult], list[CandidateResult]]
"""Candidates tried in as many rounds as it takes: a sweep yields the requests of a round, is sent their results in the
same order, and returns the results of all rounds, at least one. It does not know who builds them, so that the rounds of
several sweeps can be built together; see ``run_sweeps``."""


class Policy(Protocol):
    """Decides which candidates are tried; the fastest of them by replay becomes the plan.

    To add one: write its sweep and its spec in a module of its own beside ``paper.py`` and name it in ``registry.py``.
    """

    def __call__(self, lengths_tokens: tuple[int, ...], profile: Profile, options: "PlanOptions") -> Sweep:
        """Try candidates for the batch of one replica.

        Args:
            lengths_tokens: Tokens of every sequence, each at least 1.
            profile: Cost model and memory, of one replica.
            options: How to plan.

        Raises:
            InfeasibleBatchError: If a better reason is known than the smallest shortage among the results.
        """
        ...


def run_sweeps(sweeps: Sequence[Sweep], run: CandidateRunner) -> list[list[CandidateResult]]:
    """Run sweeps side by side: what all of them want in one round is built together.

    Args:
        sweeps: Not yet begun.
        run: Builds the candidates of one round.

    Returns:
        The results of every sweep, in the order of sweeps.
    """
    finished: list[list[CandidateResult]] = [[] for _ in sweeps]
    answers: dict[int, list[CandidateResult] | None] = dict.fromkeys(range(len(sweeps)))
    while answers:
        wanted: dict[int, Sequence[CandidateRequest]] = {}
        for index, answer in answers.items():
            try:
                wanted[index] = next(sweeps[index]) if answer is None else sweeps[index].send(answer)
            except StopIteration as end:
                finished[index] = end.value
        built = iter(run([request for requests in wanted.values() for request in requests]) if wanted else [])
        answers = {index: list(itertools.islice(built, len(requests))) for index, requests in wanted.items()}
    return finished


def solve_candidate(request: CandidateRequest) -> CandidateResult:
    """Build and replay one candidate."""
    started_s = time.perf_counter()
    spec = request.spec
    try:
        candidate = spec.build(request.lengths_tokens, request.profile, request.limits)
    except InfeasibleBatchError as error:
        report = CandidateReport(spec.name, 0, 0.0, str(error), time.perf_counter() - started_s)
        return CandidateResult(spec, report, shortage=error)
    makespan_s = simulate(candidate.pipelines, request.profile).makespan_s
    slice_count = longest_slice_count(candidate.pipelines, request.lengths_tokens)
    report = CandidateReport(spec.name, slice_count, makespan_s, "", time.perf_counter() - started_s)
    return CandidateResult(spec, report, candidate=candidate)


def longest_slice_count(pipelines: Sequence[Pipeline], lengths_tokens: Sequence[int]) -> int:
    """Count the slices of the longest sequence (paper: K)."""
    longest = max(range(len(lengths_tokens)), key=lengths_tokens.__getitem__)
    return sum(
        piece.sequence_index == longest for pipeline in pipelines for chunk in pipeline.chunks for piece in chunk.slices
    )


def least_shortage(results: Sequence[CandidateResult]) -> CandidateResult:
    """Find the result that lacks the fewest bytes; the first of equals. At least one lacks some."""
    return min(
        (result for result in results if result.shortage is not None),
        key=lambda result: result.shortage.needed_bytes - result.shortage.usable_bytes if result.shortage else 0.0,
    )
