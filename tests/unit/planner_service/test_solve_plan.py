"""The sweep over candidates and the plan it gives."""

import pickle
from collections.abc import Sequence

import pytest

from infinipipe_contract.plan import SolveOutcome, plan_digest
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import InfeasibleBatchError, InvalidLengthsError, InvalidOptionsError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult
from infinipipe_planner.scheduling import recompute
from infinipipe_planner.scheduling.ilp import IlpResult
from infinipipe_planner.solve import run_in_process, solve_plan
from support_planner.batches import common_crawl_lengths, github_lengths
from support_planner.profiles import llama_profile, round_profile, small_head_profile

PAPER = PlanOptions(policy="paper")
THREE_SLICES = PlanOptions(policy="paper", max_slice_count=3)


def test_the_fastest_candidate_by_replay_is_taken() -> None:
    profile = llama_profile()

    plan = solve_plan(github_lengths(128, 65_536), profile, PAPER)

    fitting = [c for c in plan.report.candidates if not c.infeasible_reason]
    assert [c.name for c in plan.report.candidates] == [f"K={count}" for count in range(1, 9)]
    assert plan.report.slice_count == min(fitting, key=lambda c: c.makespan_s).slice_count
    assert plan.estimate.makespan_s == min(c.makespan_s for c in fitting)
    assert plan.estimate.makespan_s == simulate(plan.pipelines, profile).makespan_s


def test_the_plan_carries_its_identity_and_digest() -> None:
    plan = solve_plan([9, 3], llama_profile(), PAPER, job="run", generation=2, step=7, target_token_count=5)

    assert (plan.job, plan.generation, plan.step, plan.policy) == ("run", 2, 7, "paper")
    assert plan.target_token_count == 5
    assert plan.digest == plan_digest(plan)


def test_every_token_but_the_last_of_each_sequence_has_a_target_by_default() -> None:
    assert solve_plan([9, 3, 1], llama_profile(), PAPER).target_token_count == 8 + 2


def test_equal_requests_give_equal_plans() -> None:
    lengths, profile = github_lengths(128, 65_536), llama_profile(device_memory_bytes=30e9)

    first, second = (solve_plan(lengths, profile, PAPER) for _ in range(2))

    assert first.digest == second.digest
    assert first.pipelines == second.pipelines


@pytest.mark.parametrize(
    "lengths",
    [[1], [1] * 512, [4096] * 64, [65_536], [3, 2], [1, 1, 65_536], list(range(1, 100))],
    ids=["one token", "all of one token", "all equal", "one sequence", "shorter than K", "extremes", "ramp"],
)
@pytest.mark.parametrize("profile", [llama_profile(), llama_profile(pp_size=1, sp_size=1)], ids=["4x8", "1x1"])
def test_unusual_batches_are_planned(lengths: list[int], profile: Profile) -> None:
    plan = solve_plan(lengths, profile, PAPER)

    validate(plan, lengths, profile)


def test_a_candidate_that_does_not_fit_says_why_and_the_others_go_on() -> None:
    plan = solve_plan(github_lengths(128, 131_072), llama_profile(device_memory_bytes=17e9), PAPER)

    reasons = [c.infeasible_reason for c in plan.report.candidates if c.infeasible_reason]
    assert 0 < len(reasons) < len(plan.report.candidates)
    assert all("stage" in reason and "bytes" in reason for reason in reasons)


def test_more_slices_are_tried_where_none_of_the_usual_ones_fit() -> None:
    """Beside the slices of one sequence a stage holds pp_size - 1 more: the finer they are, the less they weigh."""
    plan = solve_plan([131_072] * 4, small_head_profile(device_memory_bytes=7.5e9), PAPER)

    assert [c.name for c in plan.report.candidates] == [f"K={count}" for count in (*range(1, 9), 16)]
    assert all(c.infeasible_reason for c in plan.report.candidates[:8])
    assert plan.report.slice_count == 16


def test_a_limit_on_slices_is_kept_and_named_where_more_would_help() -> None:
    profile = small_head_profile(device_memory_bytes=7.5e9)

    with pytest.raises(InfeasibleBatchError, match=r"allow more slices \(max_slice_count is 3\)") as caught:
        solve_plan([131_072] * 4, profile, THREE_SLICES)

    assert caught.value.needed_bytes > caught.value.usable_bytes == profile.usable_memory_bytes


def test_a_limit_on_slices_is_not_blamed_where_fewer_come_closer() -> None:
    with pytest.raises(InfeasibleBatchError, match="cluster.sp_size") as caught:
        solve_plan([131_072] * 4, llama_profile(device_memory_bytes=15e9), THREE_SLICES)

    assert "max_slice_count" not in str(caught.value)


def test_a_batch_that_never_fits_is_refused_with_the_smallest_shortage() -> None:
    with pytest.raises(InfeasibleBatchError, match="the batch does not fit in memory: stage") as caught:
        solve_plan([131_072] * 4, llama_profile(device_memory_bytes=8e9), PAPER)

    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.stage_index) == (str(caught.value), caught.value.stage_index)


def test_without_a_solution_the_plan_is_the_fallback_and_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "solve_ilp", lambda *_: IlpResult(None, 0.0))
    lengths, profile = common_crawl_lengths(64, 131_072), llama_profile(device_memory_bytes=26e9)

    plan = solve_plan(lengths, profile, PlanOptions(policy="paper", max_slice_count=1))

    assert plan.report.outcome is SolveOutcome.FALLBACK
    validate(plan, lengths, profile)


@pytest.mark.parametrize("options", [PlanOptions(policy="nope"), PlanOptions(gap_ratio=2.0)])
def test_bad_options_are_refused_before_anything_runs(options: PlanOptions) -> None:
    with pytest.raises(InvalidOptionsError):
        solve_plan([5], llama_profile(), options)


def test_bad_lengths_are_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidLengthsError):
        solve_plan([5, 0], llama_profile(), PAPER)


def test_candidates_run_where_the_caller_says() -> None:
    seen: list[str] = []

    def run(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        seen.extend(request.spec.name for request in requests)
        return run_in_process(requests)

    solve_plan(
        [40, 30],
        round_profile(device_memory_bytes=1e9),
        THREE_SLICES,
        run_candidates=run,
    )

    assert seen == ["K=1", "K=2", "K=3"]


@pytest.mark.alone
def test_a_sweep_over_eight_slice_numbers_of_512_sequences_stays_below_five_seconds() -> None:
    plan = solve_plan(github_lengths(512, 131_072), llama_profile(device_memory_bytes=26e9), PAPER)

    assert len(plan.report.candidates) == 8
    assert plan.report.solve_s < 5.0
