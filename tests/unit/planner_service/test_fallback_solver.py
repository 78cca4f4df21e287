"""The plan that is left when the solver is lost."""

import asyncio
from typing import Any

import pytest

from infinipipe_contract.plan import Action, ActionKind, ExecutionPlan, SolveOutcome, plan_digest
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import SolverLostError, SolverStoppedError
from infinipipe_planner.fallback_solver import FallbackSolver
from infinipipe_planner.logs import FIELDS
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve_request import SolveRequest
from support_planner.pool_work import PROFILE, QUICK
from support_planner.profiles import llama_profile


class LostSolver:
    """A solver that cannot plan."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def solve(self, *_: Any, **__: Any) -> ExecutionPlan:
        raise self._error


def solve(error: Exception, profile: Any = PROFILE) -> ExecutionPlan:
    solver = FallbackSolver(LostSolver(error))
    return asyncio.run(solver.solve(SolveRequest(QUICK, profile, PlanOptions(), job="a", generation=2, step=3)))


def test_a_lost_solver_leaves_a_valid_plan_that_recomputes_everything_and_says_so() -> None:
    plan = solve(SolverLostError("Ray was lost twice"))

    validate(plan, QUICK, PROFILE)
    assert (plan.job, plan.generation, plan.step) == ("a", 2, 3)
    assert plan.report.outcome is SolveOutcome.FALLBACK
    assert plan.policy == "full-recompute"
    assert plan.digest == plan_digest(plan)
    forwards = [
        action
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        for action in stage
        if action.kind is ActionKind.FORWARD
    ]
    assert {Action(action.kind, 0, action.recompute_layer_count) for action in forwards} == {
        Action(ActionKind.FORWARD, 0, min(PROFILE.stage_layers))
    }


def test_the_log_names_the_step_that_has_a_fallback_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    solve(SolverLostError("Ray was lost twice"))

    (record,) = caplog.records
    assert record.getMessage() == "has the fallback plan, every layer recomputed: Ray was lost twice"
    assert {name: getattr(record, name) for name in FIELDS} == {"job": "a", "generation": 2, "step": 3}


def test_a_solver_that_was_stopped_has_nobody_to_plan_for() -> None:
    with pytest.raises(SolverStoppedError, match="closed"):
        solve(SolverStoppedError("the solver pool is closed"))


def test_where_not_even_full_recompute_fits_the_loss_is_the_reason() -> None:
    with pytest.raises(SolverLostError, match="Ray was lost twice"):
        solve(SolverLostError("Ray was lost twice"), llama_profile(device_memory_bytes=6e9))
