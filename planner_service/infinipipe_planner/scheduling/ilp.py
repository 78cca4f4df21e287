"""The recompute problem as an integer linear program in SCIP (paper, Alg. 2, lines 6 to 17).

Deterministic: SCIP's ``optimize`` uses one thread and fixed seeds, and the limit counts nodes instead of seconds.
"""

from dataclasses import dataclass

from pyscipopt import Model, Variable, quicksum

from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem

_MIB_BYTES = 2**20

MOST_INTEGER_ENTRIES = 5_000
"""Entries of the constraints beyond which the relaxation is solved instead. The time of branch and bound grows much
faster than the problem: with 150,000 entries it takes 25 s where the relaxation takes 1 s, and its rounded answer costs
0.2 % more (docs/planner.md)."""


@dataclass(frozen=True, slots=True)
class IlpResult:
    """What the solver found.

    Attributes:
        values: Value of every variable as the solver holds it: close to an integer, or any value between where the
            problem was too large for integers; None without a solution.
        bound: No solution has a smaller weighted sum.
    """

    values: tuple[float, ...] | None
    bound: float


def solve_ilp(problem: RecomputeProblem, limits: IlpLimits) -> IlpResult:
    """Minimise the weighted sum of recomputed layers within memory (Eq. 20).

    Bytes enter in MiB: the solver's tolerances are made for numbers of that size. A problem of more than
    ``MOST_INTEGER_ENTRIES`` is solved without asking for integers; its bound holds all the same.
    """
    model = Model("recompute")
    model.hideOutput()
    model.setParam("limits/gap", limits.gap_ratio)
    model.setParam("limits/nodes", limits.node_limit)
    entries = sum(len(constraint.saved_bytes) for constraint in problem.constraints)
    kind = "I" if entries <= MOST_INTEGER_ENTRIES else "C"
    variables = [
        model.addVar(f"layers_{index}", vtype=kind, lb=0, ub=problem.layer_limit)
        for index in range(problem.variable_count)
    ]
    limited: dict[tuple[int, int], Variable] = {}

    def layers(index: int, saved: float, limit: int | None) -> Variable:
        """Tell what a stage recomputes of a variable: that much, but not more than its layers.

        Where recompute costs bytes instead of saving them, all that the variable asks for counts: the safe side.
        """
        if limit is None or saved < 0:
            return variables[index]
        if (index, limit) not in limited:
            limited[index, limit] = model.addVar(f"layers_{index}_of_{limit}", lb=0, ub=limit)
            model.addCons(limited[index, limit] <= variables[index])
        return limited[index, limit]

    for number, constraint in enumerate(problem.constraints):
        saved_mib = quicksum(
            saved / _MIB_BYTES * layers(index, saved, constraint.layer_limit)
            for index, saved in constraint.saved_bytes.items()
        )
        excess_mib = (constraint.full_bytes - constraint.free_bytes) / _MIB_BYTES
        model.addCons(saved_mib >= excess_mib, f"memory_of_stage_{constraint.stage_index}_window_{number}")
    objective = quicksum(weight * variable for weight, variable in zip(problem.weights, variables, strict=True))
    model.setObjective(objective, "minimize")
    model.optimize()
    # Asked for a value without a solution, SCIP returns numbers all the same.
    best = model.getBestSol() if model.getNSols() > 0 else None
    if best is None:
        return IlpResult(None, 0.0)
    return IlpResult(tuple(best[variable] for variable in variables), model.getDualbound())
