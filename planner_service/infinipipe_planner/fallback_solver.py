"""A plan when there is no solver: chunks as the paper cuts them, every layer recomputed.

It needs neither Ray nor SCIP, and what fits at all fits so. It is slower to run than a plan that was solved, and faster
than a run that ends. Its report says FALLBACK.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence

from infinipipe_contract.plan import ExecutionPlan, SolveOutcome, plan_digest
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import InfeasibleBatchError, SolverLostError, SolverStoppedError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.servicer import Solver
from infinipipe_planner.solve import solve_plan

logger = logging.getLogger(__name__)

FALLBACK_POLICY = "full-recompute"


class FallbackSolver:
    """Plans with a solver, and without one when it is lost.

    Args:
        solver: Plans, and tries again by itself, as long as it can.
    """

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    async def solve(
        self,
        lengths: Sequence[int],
        profile: Profile,
        options: PlanOptions,
        *,
        job: str,
        generation: int,
        step: int,
        target_token_count: int | None,
    ) -> ExecutionPlan:
        """Plan one training step; a plan that was made without a solver has the outcome FALLBACK.

        Raises:
            SolverStoppedError: If the solver was closed.
            SolverLostError: If the solver is lost and the batch does not fit with every layer recomputed.
        """
        try:
            return await self._solver.solve(
                lengths,
                profile,
                options,
                job=job,
                generation=generation,
                step=step,
                target_token_count=target_token_count,
            )
        except SolverStoppedError:
            raise
        except SolverLostError as error:
            lost = error
        try:
            plan = await asyncio.to_thread(
                solve_plan,
                lengths,
                profile,
                PlanOptions(policy=FALLBACK_POLICY, max_slice_count=options.max_slice_count),
                job=job,
                generation=generation,
                step=step,
                target_token_count=target_token_count,
            )
        except InfeasibleBatchError:
            raise lost from None
        logger.warning(
            "step %d of job %s has the fallback plan, every layer recomputed: %s",
            step,
            job or "-",
            lost,
            extra={"job": job or "-", "generation": generation, "step": step},
        )
        return _flag(plan)


def _flag(plan: ExecutionPlan) -> ExecutionPlan:
    flagged = dataclasses.replace(plan, report=dataclasses.replace(plan.report, outcome=SolveOutcome.FALLBACK))
    return dataclasses.replace(flagged, digest=plan_digest(flagged))
