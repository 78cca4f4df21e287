"""From a batch to its plan: split it among the replicas, let the policy try candidates, replay all, take the fastest.

Entry point: ``solve_plan``. Where the candidates run (here, or in worker processes) is the caller's choice.
"""

import dataclasses
import functools
import time
from collections.abc import Sequence

from infinipipe_contract.plan import (
    CandidateReport,
    ExecutionPlan,
    SolveReport,
    default_target_token_count,
    plan_digest,
)
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import estimate_plan
from infinipipe_contract.validate import validate
from infinipipe_planner.lengths import check_lengths
from infinipipe_planner.options import PlanOptions, check_options
from infinipipe_planner.policies.candidate import (
    Candidate,
    CandidateRequest,
    CandidateResult,
    CandidateRunner,
    least_shortage,
    longest_slice_count,
    run_sweeps,
    solve_candidate,
)
from infinipipe_planner.policies.registry import POLICIES
from infinipipe_planner.replicas import one_replica, place_pipelines, split_batch
from infinipipe_planner.scheduling.recompute import least_certain
from infinipipe_planner.solve_request import SolveRequest


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
    shares = _solve_shares(lengths, profile, options, run_candidates)
    pipelines = tuple(
        pipeline
        for share in shares
        for pipeline in place_pipelines(share.best.pipelines, share.sequence_indices, share.replica_index)
    )
    if target_token_count is None:
        target_token_count = default_target_token_count(lengths)
    plan = ExecutionPlan(
        job=job,
        generation=generation,
        step=step,
        policy=options.policy,
        pipelines=pipelines,
        target_token_count=target_token_count,
        estimate=estimate_plan(pipelines, profile),
        report=SolveReport(
            outcome=least_certain(share.best.outcome for share in shares),
            solve_s=time.perf_counter() - started_s,
            slice_count=longest_slice_count(pipelines, lengths),
            gap_ratio=max(share.best.gap_ratio for share in shares),
            candidates=tuple(report for share in shares for report in share.reports),
        ),
    )
    plan = dataclasses.replace(plan, digest=plan_digest(plan))
    validate(plan, lengths, profile)
    return plan


def solve_request(request: SolveRequest, run_candidates: CandidateRunner = run_in_process) -> ExecutionPlan:
    """Plan what a solver is asked; see ``solve_plan``."""
    return solve_plan(
        request.lengths,
        request.profile,
        request.options,
        job=request.job,
        generation=request.generation,
        step=request.step,
        target_token_count=request.target_token_count,
        run_candidates=run_candidates,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Share:
    """What one replica has of the batch, and how it is planned.

    Attributes:
        replica_index: The replica.
        sequence_indices: Its sequences, at least one.
        best: The fastest of its candidates.
        reports: All of them.
    """

    replica_index: int
    sequence_indices: Sequence[int]
    best: Candidate
    reports: tuple[CandidateReport, ...]


def _solve_shares(
    lengths: Sequence[int], profile: Profile, options: PlanOptions, run_candidates: CandidateRunner
) -> list[_Share]:
    """Split the batch among the replicas and plan the share of each that has one.

    Raises:
        InfeasibleBatchError: If a share does not fit; the memory of all replicas is the same.
    """
    split = {index: indices for index, indices in enumerate(split_batch(lengths, profile)) if indices}
    sweep = functools.partial(POLICIES[options.policy], profile=one_replica(profile), options=options)
    swept = run_sweeps([sweep(tuple(lengths[i] for i in indices)) for indices in split.values()], run_candidates)
    return [
        _Share(
            replica_index,
            indices,
            _fastest(results),
            tuple(dataclasses.replace(result.report, replica_index=replica_index) for result in results),
        )
        for (replica_index, indices), results in zip(split.items(), swept, strict=True)
    ]


def _fastest(results: Sequence[CandidateResult]) -> Candidate:
    """Choose the candidate with the shortest replay.

    Raises:
        InfeasibleBatchError: If none fits; of all it tells the smallest shortage.
    """
    best = min((r for r in results if r.candidate is not None), key=lambda r: r.report.makespan_s, default=None)
    if best is not None and best.candidate is not None:
        return best.candidate
    shortage = least_shortage(results).shortage
    assert shortage is not None, "a candidate that was not built lacks memory"
    raise shortage
