"""From a batch to its plan: sweep the slice number K, replay every candidate, take the fastest.

Entry point: ``solve_plan``. Where the candidates run (here, or in worker processes) is the caller's choice.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import (
    CandidateReport,
    ExecutionPlan,
    SolveReport,
    default_target_token_count,
    plan_digest,
)
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import estimate_plan, simulate
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.lengths import check_lengths
from infinipipe_planner.options import DEFAULT_GAP_RATIO, DEFAULT_NODE_LIMIT, PlanOptions, check_options
from infinipipe_planner.policies.candidate import Candidate
from infinipipe_planner.policies.registry import POLICIES
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

_WIDEST_SLICE_COUNT = 256
"""Largest K tried when nothing fits: beyond it the chunks in flight hold hardly more than the longest sequence."""


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """Everything a worker needs to build one candidate."""

    lengths_tokens: tuple[int, ...]
    profile: Profile
    options: PlanOptions
    slice_count: int


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A built candidate, or why there is none; exactly one of ``candidate`` and ``shortage`` is set."""

    report: CandidateReport
    candidate: Candidate | None = None
    shortage: InfeasibleBatchError | None = None


CandidateRunner = Callable[[Sequence[CandidateRequest]], list[CandidateResult]]
"""Builds candidates and returns the results in the order of the requests."""


def solve_candidate(request: CandidateRequest) -> CandidateResult:
    """Build and replay the candidate of one slice number."""
    started_s = time.perf_counter()
    options = request.options
    limits = IlpLimits(options.gap_ratio or DEFAULT_GAP_RATIO, options.node_limit or DEFAULT_NODE_LIMIT)
    build = POLICIES[options.policy]
    try:
        candidate = build(request.lengths_tokens, request.profile, request.slice_count, limits)
    except InfeasibleBatchError as error:
        report = CandidateReport(request.slice_count, 0.0, str(error), time.perf_counter() - started_s)
        return CandidateResult(report, shortage=error)
    makespan_s = simulate(candidate.pipelines, request.profile).makespan_s
    report = CandidateReport(request.slice_count, makespan_s, "", time.perf_counter() - started_s)
    return CandidateResult(report, candidate=candidate)


def run_in_process(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
    """Build candidates one after the other."""
    return [solve_candidate(request) for request in requests]


def solve_plan(
    lengths: Sequence[int],
    profile: Profile,
    options: PlanOptions,
    *,
    job: str = "",
    generation: int = 0,
    step: int = 0,
    target_token_count: int | None = None,
    run_candidates: CandidateRunner = run_in_process,
) -> ExecutionPlan:
    """Plan one training step.

    The same arguments give the same plan, wherever and however loaded the machine is; only the measured seconds of the
    report differ.

    Args:
        lengths: Tokens of every sequence of the batch, each at least 1.
        profile: Cost model of the job, as ``check_profile`` accepts it.
        options: How to plan.
        job: Job the plan is for; empty without one.
        generation: Generation of the job; 0 without one.
        step: Training step.
        target_token_count: Tokens with a target; None means every token but the last of each sequence.
        run_candidates: Where the candidates run.

    Raises:
        InvalidLengthsError: If the lengths cannot be planned.
        InvalidOptionsError: If the options make no sense.
        InfeasibleBatchError: If no candidate fits in memory; of all candidates it tells the smallest shortage.
    """
    started_s = time.perf_counter()
    check_options(options)
    check_lengths(lengths)
    results = _sweep(tuple(lengths), profile, options, run_candidates)
    best = min((r for r in results if r.candidate is not None), key=lambda r: r.report.makespan_s, default=None)
    if best is None or best.candidate is None:
        raise _smallest_shortage(results, max(lengths), options)
    if target_token_count is None:
        target_token_count = default_target_token_count(lengths)
    plan = ExecutionPlan(
        job=job,
        generation=generation,
        step=step,
        policy=options.policy,
        pipelines=best.candidate.pipelines,
        target_token_count=target_token_count,
        estimate=estimate_plan(best.candidate.pipelines, profile),
        report=SolveReport(
            outcome=best.candidate.outcome,
            solve_s=time.perf_counter() - started_s,
            slice_count=best.report.slice_count,
            gap_ratio=best.candidate.gap_ratio,
            candidates=tuple(result.report for result in results),
        ),
    )
    plan = dataclasses.replace(plan, digest=plan_digest(plan))
    validate(plan, lengths, profile)
    return plan


def _sweep(
    lengths: tuple[int, ...], profile: Profile, options: PlanOptions, run_candidates: CandidateRunner
) -> list[CandidateResult]:
    """Try K in [1, pp_size + 4] (paper, III-B); if nothing fits, double K until something does."""
    longest = max(lengths)
    last = min(options.max_slice_count or profile.cluster.pp_size + 4, longest)
    results = run_candidates(
        [CandidateRequest(lengths, profile, options, slice_count) for slice_count in range(1, last + 1)]
    )
    widest = min(longest, _WIDEST_SLICE_COUNT) if options.max_slice_count == 0 else last
    while last < widest and all(result.candidate is None for result in results):
        last = min(2 * last, widest)
        results += run_candidates([CandidateRequest(lengths, profile, options, last)])
    return results


def _smallest_shortage(
    results: Sequence[CandidateResult], longest_tokens: int, options: PlanOptions
) -> InfeasibleBatchError:
    """Choose what to tell: the candidate that comes closest, and more slices where they bring it closer still."""
    lacking_bytes = {
        result.report.slice_count: result.shortage.needed_bytes - result.shortage.usable_bytes
        for result in results
        if result.shortage is not None
    }
    closest = min(lacking_bytes, key=lacking_bytes.__getitem__)
    error = next(r.shortage for r in results if r.shortage is not None and r.report.slice_count == closest)
    if closest == options.max_slice_count < longest_tokens:
        remedy = f"allow more slices (max_slice_count is {options.max_slice_count}), or {error.remedy}"
        return InfeasibleBatchError(error.stage_index, error.needed_bytes, error.usable_bytes, remedy)
    return error
