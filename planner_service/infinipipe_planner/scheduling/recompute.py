"""Recompute of one pipeline (paper, III-C3): the solver's answer made exact in bytes, or a safe one in its place."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.scheduling.ilp import solve_ilp
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem

_VALUE_DIGITS = 6
"""Digits of a solver's value that mean something: its tolerance is 1e-6."""

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
        layer_counts = _round(result.values, problem)
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
    proven = math.ceil(bound - 1e-6) if problem.weighs_all_alike else bound
    return 1 - min(max(proven, 0.0), cost) / cost


def _round(values: Sequence[float], problem: RecomputeProblem) -> tuple[int, ...] | None:
    """Turn the solver's values into whole layers that fit, checked in bytes; None when that does not work.

    The solver works in floating-point MiB and accepts small violations; where it solved the relaxation, its values are
    no integers at all.
    """
    layer_counts = [round(value) for value in values]
    if not _raise_to_fit(layer_counts, values, problem):
        return None
    _lower_while_it_fits(layer_counts, values, problem)
    return tuple(layer_counts)


def _raise_to_fit(layer_counts: list[int], values: Sequence[float], problem: RecomputeProblem) -> bool:
    """Recompute more where a window misses its memory: first what was rounded down most, then what saves most."""
    for constraint in problem.constraints:
        missing_bytes = constraint.needed_bytes(layer_counts) - constraint.free_bytes
        while missing_bytes > 0:
            raisable = [
                (round(values[index] - layer_counts[index], _VALUE_DIGITS), saved, -index)
                for index, saved in constraint.saved_bytes.items()
                if saved > 0 and layer_counts[index] < constraint.limit_layers(problem.layer_limit)
            ]
            if not raisable:
                return False
            _, saved, negative_index = max(raisable)
            layer_counts[-negative_index] += 1
            missing_bytes -= saved
    # Where recompute costs bytes instead of saving them, one window's repair may break another.
    return all(constraint.holds(layer_counts) for constraint in problem.constraints)


def _lower_while_it_fits(layer_counts: list[int], values: Sequence[float], problem: RecomputeProblem) -> None:
    """Recompute less where every window has room for it: first what was rounded up most, then what costs most."""
    spare_bytes = [constraint.free_bytes - constraint.needed_bytes(layer_counts) for constraint in problem.constraints]
    windows_of: list[list[tuple[int, float, int]]] = [[] for _ in layer_counts]
    for number, constraint in enumerate(problem.constraints):
        limit = constraint.limit_layers(problem.layer_limit)
        for index, saved in constraint.saved_bytes.items():
            windows_of[index].append((number, saved, limit))

    def rounded_up(index: int) -> tuple[float, float]:
        return round(values[index] - layer_counts[index], _VALUE_DIGITS), -problem.weights[index]

    for index in sorted(range(len(layer_counts)), key=rounded_up):
        while layer_counts[index] > 0:
            # A stage with fewer layers than the variable asks for loses nothing yet.
            losing = [(number, saved) for number, saved, limit in windows_of[index] if layer_counts[index] <= limit]
            if any(spare_bytes[number] < saved for number, saved in losing):
                break
            layer_counts[index] -= 1
            for number, saved in losing:
                spare_bytes[number] -= saved
