"""A plan when the solver has none: chunks as the paper cuts them, every layer recomputed.

It needs neither Ray nor SCIP, and what fits at all fits so. It is slower to run than a plan that was solved, and faster
than a run that ends. Its report says FALLBACK, and why.
"""

import asyncio
import dataclasses
import logging

from infinipipe_contract.plan import ExecutionPlan, SolveOutcome, plan_digest
from infinipipe_planner.errors import (
    InfeasibleBatchError,
    PlannerError,
    SolverLostError,
    SolverStoppedError,
    SolverTimeoutError,
)
from infinipipe_planner.job_records import JobId
from infinipipe_planner.logs import about
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.servicer import Solver
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest

logger = logging.getLogger(__name__)

FALLBACK_POLICY = "full-recompute"


class FallbackSolver:
    """Plans with a solver, and without one when it is lost or takes too long.

    Args:
        solver: Plans, and tries again by itself, as long as it can.
    """

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        """Plan one training step; the plan that is left when that fails has the outcome FALLBACK.

        Raises:
            SolverStoppedError: If the solver was closed.
            SolverLostError: If the solver is lost and the batch does not fit with every layer recomputed.
            SolverTimeoutError: The same for a solve that took too long.
        """
        try:
            return await self._solver.solve(request)
        except SolverStoppedError:
            raise
        except SolverTimeoutError as error:
            reason: PlannerError = error
            # The solver is there, and stops this, too, if it takes too long: this process could not.
            plan_otherwise = self._solver.solve
        except SolverLostError as error:
            reason = error
            plan_otherwise = _solve_here
        options = PlanOptions(policy=FALLBACK_POLICY, max_slice_count=request.options.max_slice_count)
        try:
            plan = await plan_otherwise(dataclasses.replace(request, options=options))
        except SolverStoppedError:
            raise
        except (InfeasibleBatchError, SolverTimeoutError, SolverLostError):
            raise reason from None
        log = about(logger, JobId("", request.job or "-"), request.generation, request.step)
        log.warning("has the fallback plan, every layer recomputed: %s", reason)
        return _flag(plan, str(reason))


async def _solve_here(request: SolveRequest) -> ExecutionPlan:
    return await asyncio.to_thread(solve_request, request)


def _flag(plan: ExecutionPlan, reason: str) -> ExecutionPlan:
    report = dataclasses.replace(plan.report, outcome=SolveOutcome.FALLBACK, fallback_reason=reason)
    flagged = dataclasses.replace(plan, report=report)
    return dataclasses.replace(flagged, digest=plan_digest(flagged))
