"""From a batch to its plan: let the policy try candidates, replay every one, take the fastest.

Entry point: ``solve_plan``. Where the candidates run (here, or in worker processes) is the caller's choice.
"""

import dataclasses
import time
from collections.abc import Sequence

from infinipipe_contract.plan import ExecutionPlan, SolveReport, default_target_token_count, plan_digest
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import estimate_plan
from infinipipe_contract.validate import validate
from infinipipe_planner.lengths import check_lengths
from infinipipe_planner.options import PlanOptions, check_options
from infinipipe_planner.policies.candidate import (
    CandidateRequest,
    CandidateResult,
    CandidateRunner,
    least_shortage,
    solve_candidate,
)
from infinipipe_planner.policies.registry import POLICIES


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
    results = POLICIES[options.policy](tuple(lengths), profile, options, run_candidates)
    best = min((r for r in results if r.candidate is not None), key=lambda r: r.report.makespan_s, default=None)
    if best is None or best.candidate is None:
        shortage = least_shortage(results).shortage
        assert shortage is not None, "a candidate that was not built lacks memory"
        raise shortage
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
