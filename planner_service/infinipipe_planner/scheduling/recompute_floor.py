"""A floor under the recompute of a pipeline, without a solver: what leaves hopeless groups and trials alone.

A window alone costs so much at least. Windows of one stage that share no variable cost the sum of theirs; which of them
to add up is an interval scheduling problem.
"""

import bisect
import math
from collections.abc import Iterable

from infinipipe_planner.scheduling.recompute_problem import RecomputeProblem, WindowConstraint


def least_cost(problem: RecomputeProblem) -> float:
    """Bound the weighted sum of the variables (Eq. 17) from below."""
    by_stage: dict[int, list[WindowConstraint]] = {}
    for constraint in problem.constraints:
        by_stage.setdefault(constraint.stage_index, []).append(constraint)
    return max((_disjoint_sum(windows, problem) for windows in by_stage.values()), default=0.0)


def _disjoint_sum(windows: Iterable[WindowConstraint], problem: RecomputeProblem) -> float:
    """Find the largest sum over windows whose variables, taken as ranges, do not overlap."""
    # The best selection that ends with variable last_variables[i] costs sums[i]; both grow.
    last_variables, sums = [-1], [0.0]
    for window in windows:
        before = bisect.bisect_left(last_variables, min(window.saved_bytes)) - 1
        reached = sums[before] + _least_window_cost(window, problem)
        last = max(window.saved_bytes)
        place = bisect.bisect_right(last_variables, last)
        if reached <= sums[place - 1]:
            continue
        # What ends later and reaches no more is of no use.
        beaten = bisect.bisect_right(sums, reached, lo=place)
        last_variables[place:beaten], sums[place:beaten] = [last], [reached]
    return sums[-1]


def _least_window_cost(window: WindowConstraint, problem: RecomputeProblem) -> float:
    """Weigh the layers that one window needs, those that save most for their weight first; fractions are allowed."""
    missing_bytes, cost = window.full_bytes - window.free_bytes, 0.0
    saving = [(saved, problem.weights[index]) for index, saved in window.saved_bytes.items() if saved > 0]
    for saved, weight in sorted(saving, key=lambda entry: entry[1] / entry[0]):
        if missing_bytes <= 0:
            break
        layers = min(float(window.limit_layers(problem.layer_limit)), missing_bytes / saved)
        cost += weight * layers
        missing_bytes -= layers * saved
    return math.ceil(cost - 1e-9) if problem.weighs_all_alike else cost
