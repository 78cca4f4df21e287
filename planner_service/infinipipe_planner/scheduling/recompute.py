"""Recompute of one pipeline (paper, III-C3): the solver's answer made exact in bytes, or a safe one in its place."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.scheduling.ilp import solve_ilp
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem

_LEAST_CERTAIN_LAST = (SolveOutcome.OPTIMAL, SolveOutcome.BEST_FOUND, SolveOutcome.FALLBACK)


@dataclass(frozen=True, slots=True)
class RecomputeSolution:
    """Recomputed layers of every diagonal.

    Attributes:
        layer_counts: Value of every variable (paper: C); it fits in memory, checked in bytes.
        outcome: How certain it is.
        gap_ratio: Distance to the best bound, relative to the solution's cost, in [0, 1].
    """

    layer_counts: tuple[int, ...]
    outcome: SolveOutcome
    gap_ratio: float


def solve_recompute(problem: RecomputeProblem, limits: IlpLimits) -> RecomputeSolution | None:
    """Choose the layers to recompute (paper, Alg. 2).

    Returns:
        The solution, or None when even full recompute does not fit. Where the solver stops without a solution, full
        recompute takes its place, flagged as the fallback.
    """
    if not problem.constraints:
        return RecomputeSolution((0,) * problem.variable_count, SolveOutcome.OPTIMAL, 0.0)
    if problem.find_shortage() is not None:
        return None
    result = solve_ilp(problem, limits)
    if result.values is not None:
        layer_counts = _repair([round(value) for value in result.values], problem)
        if layer_counts is not None:
            gap_ratio = _gap_ratio(problem, layer_counts, result.bound)
            is_optimal = gap_ratio <= limits.gap_ratio
            outcome = SolveOutcome.OPTIMAL if is_optimal else SolveOutcome.BEST_FOUND
            return RecomputeSolution(layer_counts, outcome, gap_ratio)
    full = (problem.layer_limit,) * problem.variable_count
    if not all(constraint.holds(full) for constraint in problem.constraints):
        return None
    return RecomputeSolution(full, SolveOutcome.FALLBACK, _gap_ratio(problem, full, result.bound))


def least_certain(outcomes: Iterable[SolveOutcome]) -> SolveOutcome:
    """Sum up several problems: a plan is as certain as the least certain of them."""
    return max(outcomes, key=_LEAST_CERTAIN_LAST.index)


def _gap_ratio(problem: RecomputeProblem, layer_counts: Sequence[int], bound: float) -> float:
    """Compare a solution with the solver's bound, relative to the solution.

    Where all layers weigh 1 the cost is whole, so a bound of 2.3 proves 3.
    """
    cost = problem.cost(layer_counts)
    if cost == 0:
        return 0.0
    is_whole = all(weight == 1 for weight in problem.weights)
    proven = math.ceil(bound - 1e-6) if is_whole else bound
    return 1 - min(max(proven, 0.0), cost) / cost


def _repair(layer_counts: list[int], problem: RecomputeProblem) -> tuple[int, ...] | None:
    """Recompute more where a window misses its memory; None when that does not help.

    The solver works in floating-point MiB and accepts small violations; a plan is checked in bytes.
    """
    for constraint in problem.constraints:
        while not constraint.holds(layer_counts):
            raisable = [
                index
                for index, saved in constraint.saved_bytes.items()
                if saved > 0 and layer_counts[index] < problem.layer_limit
            ]
            if not raisable:
                return None
            layer_counts[max(raisable, key=constraint.saved_bytes.__getitem__)] += 1
    # Where recompute costs bytes instead of saving them, one window's repair may break another.
    repaired = all(constraint.holds(layer_counts) for constraint in problem.constraints)
    return tuple(layer_counts) if repaired else None
