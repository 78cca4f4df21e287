"""The floor under the recompute of a pipeline, and problems too large for branch and bound."""

import itertools
import random

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.chunking.chunk_batch import chunk_batch
from infinipipe_planner.scheduling import ilp
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_floor import least_cost
from infinipipe_planner.scheduling.recompute_problem import (
    IlpLimits,
    RecomputeProblem,
    WindowConstraint,
    build_recompute_problem,
)
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile

EXACT = IlpLimits(gap_ratio=0.0, node_limit=100_000)
MIB = 2**20


def random_problem(seed: int, *, is_weighted: bool, is_uneven: bool = False) -> RecomputeProblem:
    """A problem of few windows, whose stages have three layers or, uneven, one of them only one or two."""
    generator = random.Random(seed)
    count = generator.randint(2, 5)
    weights = tuple(generator.choice([0.5, 1.0, 2.0]) if is_weighted else 1.0 for _ in range(count))
    constraints = []
    for _ in range(generator.randint(1, 5)):
        first = generator.randrange(count)
        last = min(count - 1, first + generator.randint(0, 2))
        saved = {index: generator.randint(1, 9) * MIB for index in range(first, last + 1)}
        excess = generator.randint(0, 3 * sum(saved.values()) // MIB) * MIB
        stage_index = generator.randrange(2)
        own_limit = 1 + seed % 2 if is_uneven and stage_index else None
        excess = min(excess, sum(saved.values()) * own_limit) if own_limit else excess
        constraints.append(WindowConstraint(stage_index, excess, saved, 0, own_limit))
    return RecomputeProblem(weights, 3, tuple(constraints))


def cheapest(problem: RecomputeProblem) -> float:
    vectors = itertools.product(range(problem.layer_limit + 1), repeat=problem.variable_count)
    return min(problem.cost(v) for v in vectors if all(c.holds(v) for c in problem.constraints))


@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_recompute_costs_less_than_the_floor(seed: int, is_weighted: bool, is_uneven: bool) -> None:
    problem = random_problem(seed, is_weighted=is_weighted, is_uneven=is_uneven)

    assert least_cost(problem) <= cheapest(problem) + 1e-9


def test_windows_that_share_nothing_add_up() -> None:
    windows = tuple(WindowConstraint(0, 10 * MIB, {index: 4 * MIB, index + 1: 4 * MIB}, 0) for index in (0, 1, 2))

    assert least_cost(RecomputeProblem((1.0,) * 4, 4, windows)) == 3 + 3


def test_without_constraints_the_floor_is_nothing() -> None:
    assert least_cost(RecomputeProblem((1.0,) * 3, 4, ())) == 0.0


@pytest.mark.parametrize("seed", range(40))
def test_stages_with_fewer_layers_recompute_what_they_have_at_the_least_cost(seed: int) -> None:
    problem = random_problem(seed, is_weighted=True, is_uneven=True)

    solution = solve_recompute(problem, EXACT)

    assert solution is not None
    assert problem.cost(solution.layer_counts) == pytest.approx(cheapest(problem))


@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_problem_solved_without_integers_still_fits_and_tells_its_gap(
    seed: int, is_uneven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(seed, is_weighted=False, is_uneven=is_uneven)
    monkeypatch.setattr(ilp, "MOST_INTEGER_ENTRIES", 0)

    solution = solve_recompute(problem, EXACT)

    assert solution is not None
    assert all(constraint.holds(solution.layer_counts) for constraint in problem.constraints)
    assert problem.cost(solution.layer_counts) * (1 - solution.gap_ratio) <= cheapest(problem) + 1e-9
    assert (solution.outcome is SolveOutcome.OPTIMAL) == (solution.gap_ratio == 0.0)


def test_rounding_the_relaxation_costs_little_where_there_are_many_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = llama_profile(device_memory_bytes=32e9)
    order = order_pipeline(chunk_batch(github_lengths(512, 131_072), profile, 6), 4)
    problem = build_recompute_problem(order, CostModel(profile))
    by_integers = solve_recompute(problem, IlpLimits(0.02, 20))
    monkeypatch.setattr(ilp, "MOST_INTEGER_ENTRIES", 0)

    by_rounding = solve_recompute(problem, IlpLimits(0.02, 20))

    assert by_integers is not None
    assert by_rounding is not None
    assert sum(by_integers.layer_counts) > 20
    assert sum(by_rounding.layer_counts) <= 1.05 * sum(by_integers.layer_counts)
