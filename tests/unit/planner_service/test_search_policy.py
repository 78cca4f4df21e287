"""Policy ``search``: faster than the paper's, within its effort, and honest about what does not fit."""

import time

import pytest

from infinipipe_contract.plan import SolveOutcome
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies import search
from infinipipe_planner.policies.candidate import Sweep
from infinipipe_planner.solve import solve_plan
from support_planner.batches import common_crawl_lengths, github_lengths
from support_planner.profiles import llama_profile

SEARCH = PlanOptions(policy="search")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("draw", [github_lengths, common_crawl_lengths])
def test_a_searched_plan_is_well_below_the_papers(draw: type, seed: int) -> None:
    lengths = draw(512, 98_304, seed=seed)
    paper = solve_plan(lengths, llama_profile(), PlanOptions(policy="paper"))
    searched = solve_plan(lengths, llama_profile(), SEARCH)

    assert searched.estimate.makespan_s < 0.92 * paper.estimate.makespan_s
    assert searched.estimate.makespan_s < 1.15 * searched.estimate.ideal_s


@pytest.mark.alone
def test_the_search_itself_stays_below_a_twentieth_of_the_iteration() -> None:
    started_s = time.process_time()
    plan = solve_plan(github_lengths(512, 196_608), llama_profile(), SEARCH)

    # One process does here what several solvers share; the bound is generous because cores differ.
    assert time.process_time() - started_s < 0.2 * plan.estimate.makespan_s


def test_memory_too_small_for_the_longest_sequence_is_made_by_recompute() -> None:
    lengths, profile = [131_072, *github_lengths(64, 8_192)], llama_profile(device_memory_bytes=17e9)
    plan = solve_plan(lengths, profile, SEARCH)

    validate(plan, lengths, profile)
    assert plan.estimate.recompute_ratio > 0
    assert plan.report.outcome in (SolveOutcome.OPTIMAL, SolveOutcome.BEST_FOUND)


def test_a_batch_that_never_fits_is_refused_as_by_the_paper() -> None:
    lengths, profile = [131_072] * 4, llama_profile(device_memory_bytes=8e9)

    with pytest.raises(InfeasibleBatchError, match="the batch does not fit in memory: stage"):
        solve_plan(lengths, profile, SEARCH)


@pytest.mark.alone
def test_a_wall_clock_budget_ends_the_search_and_still_gives_a_valid_plan() -> None:
    lengths, profile = github_lengths(512, 98_304), llama_profile()
    hurried = solve_plan(lengths, profile, PlanOptions(policy="search", budget_s=0.001))
    relaxed = solve_plan(lengths, profile, PlanOptions(policy="search", budget_s=2.0))

    validate(hurried, lengths, profile)
    assert len(hurried.report.candidates) < len(relaxed.report.candidates)
    assert relaxed.estimate.makespan_s <= hurried.estimate.makespan_s


def test_a_limit_on_slices_holds_for_every_sequence() -> None:
    plan = solve_plan(github_lengths(64, 65_536), llama_profile(), PlanOptions(policy="search", max_slice_count=4))

    counts: dict[int, int] = {}
    for pipeline in plan.pipelines:
        for chunk in pipeline.chunks:
            for piece in chunk.slices:
                counts[piece.sequence_index] = counts.get(piece.sequence_index, 0) + 1
    assert max(counts.values()) <= 4


def test_a_searched_plan_stands_where_the_papers_candidates_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep_nothing(*_: object) -> Sweep:
        yield from ()
        raise InfeasibleBatchError(0, 2.0, 1.0, "allow more slices")

    monkeypatch.setattr(search, "sweep_paper", sweep_nothing)
    lengths, profile = github_lengths(64, 16_384), llama_profile()

    validate(solve_plan(lengths, profile, SEARCH), lengths, profile)
