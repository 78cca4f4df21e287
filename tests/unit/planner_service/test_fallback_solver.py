"""The plan that is left when the solver is lost."""

import asyncio
from typing import Any

import pytest

from infinipipe_contract.codec import plan_from_proto, plan_to_proto
from infinipipe_contract.plan import Action, ActionKind, ExecutionPlan, SolveOutcome, plan_digest
from infinipipe_contract.text import plan_tables
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import SolverLostError, SolverStoppedError, SolverTimeoutError
from infinipipe_planner.fallback_solver import FallbackSolver
from infinipipe_planner.logs import FIELDS
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest
from support_planner.pool_work import PROFILE, QUICK
from support_planner.profiles import llama_profile


class LostSolver:
    """A solver that cannot plan."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def solve(self, *_: Any, **__: Any) -> ExecutionPlan:
        raise self._error


class SlowSolver:
    """A solver that plans without SCIP only in its time, and then as often as it is asked."""

    def __init__(self, *, is_always_slow: bool = False) -> None:
        self.policies: list[str] = []
        self._is_always_slow = is_always_slow

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        self.policies.append(request.options.policy)
        if self._is_always_slow or request.options.policy != "full-recompute":
            raise SolverTimeoutError(2.0)
        return solve_request(request)


def solve(error: Exception, profile: Any = PROFILE) -> ExecutionPlan:
    solver = FallbackSolver(LostSolver(error))
    return asyncio.run(solver.solve(SolveRequest(QUICK, profile, PlanOptions(), job="a", generation=2, step=3)))


def test_a_lost_solver_leaves_a_valid_plan_that_recomputes_everything_and_says_so() -> None:
    plan = solve(SolverLostError("Ray was lost twice"))

    validate(plan, QUICK, PROFILE)
    assert (plan.job, plan.generation, plan.step) == ("a", 2, 3)
    assert plan.report.outcome is SolveOutcome.FALLBACK
    assert plan.report.fallback_reason == "Ray was lost twice"
    assert plan_from_proto(plan_to_proto(plan)) == plan
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


def test_a_solve_that_took_too_long_leaves_the_solvers_own_plan_that_recomputes_everything_and_says_why() -> None:
    slow = SlowSolver()

    plan = asyncio.run(FallbackSolver(slow).solve(SolveRequest(QUICK, PROFILE, PlanOptions(policy="paper"))))

    assert slow.policies == ["paper", "full-recompute"]
    assert plan.report.outcome is SolveOutcome.FALLBACK
    assert plan.report.fallback_reason.startswith("the solve was stopped after 2 s (--max-solve-s of the planner)")
    (line,) = [line for line in plan_tables(plan).splitlines() if line.startswith("fallback because ")]
    assert line.endswith(plan.report.fallback_reason)


def test_where_even_the_fallback_takes_too_long_the_limit_is_the_reason() -> None:
    slow = SlowSolver(is_always_slow=True)

    with pytest.raises(SolverTimeoutError, match=r"stopped after 2 s \(--max-solve-s of the planner\)"):
        asyncio.run(FallbackSolver(slow).solve(SolveRequest(QUICK, PROFILE, PlanOptions(policy="paper"))))
