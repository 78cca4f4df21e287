"""The solver's answer made exact, and a safe one in its place."""

import math

import pytest

from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.scheduling import recompute
from infinipipe_planner.scheduling.ilp import IlpResult, solve_ilp
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem, WindowConstraint

LIMITS = IlpLimits(gap_ratio=0.0, node_limit=1000)
MIB = 2.0**20


def window(full: float, free: float, *saved: float, stage_index: int = 0) -> WindowConstraint:
    return WindowConstraint(stage_index, full * MIB, {i: s * MIB for i, s in enumerate(saved) if s}, free * MIB)


# 10 MiB too many; a layer of variable 0 saves 4, of variable 1 saves 3.
PROBLEM = RecomputeProblem((1.0,) * 2, 4, (window(30, 20, 4, 3),))


def answer(monkeypatch: pytest.MonkeyPatch, values: tuple[float, ...] | None, bound: float = 0.0) -> None:
    monkeypatch.setattr(recompute, "solve_ilp", lambda *_: IlpResult(values, bound))


def test_the_optimum_is_found_and_proven() -> None:
    solution = solve_recompute(PROBLEM, LIMITS)

    assert solution is not None
    assert (sum(solution.layer_counts), solution.outcome, solution.gap_ratio) == (3, SolveOutcome.OPTIMAL, 0.0)


def test_values_a_hair_off_an_integer_are_that_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, (2.9999999999, 2e-16), bound=2.9999999)

    solution = solve_recompute(PROBLEM, LIMITS)

    assert solution is not None
    assert solution.layer_counts == (3, 0)
    assert solution.outcome is SolveOutcome.OPTIMAL


def test_a_window_that_misses_by_the_solvers_tolerance_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    one_byte_short = RecomputeProblem((1.0,) * 2, 4, (window(30, 20, 5 - 0.1 / MIB, 3),))
    answer(monkeypatch, (2.0, 0.0), bound=2.0)

    solution = solve_recompute(one_byte_short, LIMITS)

    assert solution is not None
    assert solution.layer_counts == (3, 0)
    assert one_byte_short.constraints[0].holds(solution.layer_counts)


def test_the_fixed_values_of_a_repair_count_in_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, (2.0, 0.0), bound=2.0)

    solution = solve_recompute(PROBLEM, LIMITS)

    assert solution is not None
    assert (solution.layer_counts, solution.outcome) == ((3, 0), SolveOutcome.BEST_FOUND)
    assert solution.gap_ratio == pytest.approx(1 / 3)


def test_no_solution_within_the_limits_falls_back_to_full_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, None)

    solution = solve_recompute(PROBLEM, LIMITS)

    assert solution is not None
    assert (solution.layer_counts, solution.outcome) == ((4, 4), SolveOutcome.FALLBACK)
    assert math.isfinite(solution.gap_ratio)


def test_a_solver_stopped_before_its_first_node_is_never_called_optimal() -> None:
    coupled = tuple(
        WindowConstraint(0, 60 * MIB, {i: 4 * MIB, i + 1: 3 * MIB, i + 2: 5.5 * MIB}, 20 * MIB) for i in range(60)
    )
    problem = RecomputeProblem((1.0,) * 62, 8, coupled)

    solution = solve_recompute(problem, IlpLimits(gap_ratio=0.0, node_limit=0))

    assert solution is not None
    assert solution.outcome is not SolveOutcome.OPTIMAL
    assert all(constraint.holds(solution.layer_counts) for constraint in coupled)


def test_the_solver_is_skipped_where_nothing_needs_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problem: RecomputeProblem, limits: IlpLimits) -> IlpResult:
        raise AssertionError("the solver was called")

    monkeypatch.setattr(recompute, "solve_ilp", refuse)

    solution = solve_recompute(RecomputeProblem((1.0,) * 3, 4, ()), LIMITS)

    assert solution is not None
    assert (solution.layer_counts, solution.outcome) == ((0, 0, 0), SolveOutcome.OPTIMAL)


def test_the_worst_window_is_named_where_even_full_recompute_does_not_fit() -> None:
    problem = RecomputeProblem(
        (1.0,) * 2, 4, (window(60, 20, 4, 3, stage_index=1), window(70, 20, 4, 3, stage_index=2))
    )

    shortage = problem.find_shortage()

    assert solve_recompute(problem, LIMITS) is None
    assert shortage is not None
    assert (shortage.stage_index, shortage.least_bytes(4)) == (2, (70 - 4 * 7) * MIB)


def test_an_infeasible_model_has_no_values() -> None:
    problem = RecomputeProblem((1.0,) * 2, 4, (window(60, 20, 4, 3),))

    assert solve_ilp(problem, LIMITS).values is None


def test_recompute_that_costs_bytes_is_not_chosen_where_it_must_not_be() -> None:
    """Variable 1 holds more when recomputed, so full recompute is not the lightest."""
    problem = RecomputeProblem((1.0,) * 2, 4, (window(30, 20, 3, -2),))

    solution = solve_recompute(problem, LIMITS)

    assert solution is not None
    assert solution.layer_counts == (4, 0)


def test_equal_problems_have_equal_solutions() -> None:
    coupled = tuple(WindowConstraint(0, 50 * MIB, {i: 4 * MIB, i + 1: 3 * MIB}, 33 * MIB) for i in range(30))
    problem = RecomputeProblem((1.0,) * 31, 8, coupled)

    assert len({solve_recompute(problem, IlpLimits(0.02, 20)) for _ in range(3)}) == 1


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solve_ilp(PROBLEM, LIMITS)

    assert capfd.readouterr() == ("", "")
