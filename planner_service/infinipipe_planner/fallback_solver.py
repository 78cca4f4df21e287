"""A plan when there is no solver: chunks as the paper cuts them, every layer recomputed.

It needs neither Ray nor SCIP, and what fits at all fits so. It is slower to run than a plan that was solved, and faster
than a run that ends. Its report says FALLBACK.
"""

import asyncio
import dataclasses
import logging

from infinipipe_contract.plan import ExecutionPlan, SolveOutcome, plan_digest
from infinipipe_planner.errors import InfeasibleBatchError, SolverLostError, SolverStoppedError
from infinipipe_planner.job_records import JobId
from infinipipe_planner.logs import about
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.servicer import Solver
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest

logger = logging.getLogger(__name__)

FALLBACK_POLICY = "full-recompute"


class FallbackSolver:
    """Plans with a solver, and without one when it is lost.

    Args:
        solver: Plans, and tries again by itself, as long as it can.
    """

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        """Plan one training step; a plan that was made without a solver has the outcome FALLBACK.

        Raises:
            SolverStoppedError: If the solver was closed.
            SolverLostError: If the solver is lost and the batch does not fit with every layer recomputed.
        """
        try:
            return await self._solver.solve(request)
        except SolverStoppedError:
            raise
        except SolverLostError as error:
            lost = error
        options = PlanOptions(policy=FALLBACK_POLICY, max_slice_count=request.options.max_slice_count)
        try:
            plan = await asyncio.to_thread(solve_request, dataclasses.replace(request, options=options))
        except InfeasibleBatchError:
            raise lost from None
        log = about(logger, JobId("", request.job or "-"), request.generation, request.step)
        log.warning("has the fallback plan, every layer recomputed: %s", lost)
        return _flag(plan)


def _flag(plan: ExecutionPlan) -> ExecutionPlan:
    flagged = dataclasses.replace(plan, report=dataclasses.replace(plan.report, outcome=SolveOutcome.FALLBACK))
    return dataclasses.replace(flagged, digest=plan_digest(flagged))
