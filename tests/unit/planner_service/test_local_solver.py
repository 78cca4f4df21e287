"""The solver without Ray: a child process that plans as this one would, and whose end is an ordinary event."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from infinipipe_contract.validate import validate
from infinipipe_planner.errors import InfeasibleBatchError, SolverLostError
from infinipipe_planner.local_solver import LocalSolver
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_service import PROFILE, until

LENGTHS = (900, 5, 7, 60, 350)
LONG_LENGTHS = tuple(1 + (index * 977) % 4_096 for index in range(400))


def with_solver(scenario: Callable[[LocalSolver], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a solver of its own."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await scenario(solver)

    solver = LocalSolver.start()
    try:
        asyncio.run(run())
    finally:
        solver.close()


def solving(solver: LocalSolver, lengths: tuple[int, ...], **changes: Any) -> Coroutine[Any, Any, Any]:
    profile = dataclasses.replace(PROFILE, **changes)
    return solver.solve(lengths, profile, PlanOptions(), job="a", generation=2, step=3, target_token_count=None)


def pid_of(solver: LocalSolver) -> int:
    pid = solver._process.pid
    assert pid is not None
    return pid


def test_the_plan_is_the_one_that_this_process_would_make() -> None:
    async def scenario(solver: LocalSolver) -> None:
        plan = await solving(solver, LENGTHS)

        validate(plan, LENGTHS, PROFILE)
        assert plan.digest == solve_plan(LENGTHS, PROFILE, PlanOptions(), job="a", generation=2, step=3).digest

    with_solver(scenario)


def test_a_batch_that_cannot_fit_fails_with_the_same_error_and_the_next_one_is_planned() -> None:
    tight = dataclasses.replace(PROFILE.cluster, device_memory_bytes=1_010_000)

    async def scenario(solver: LocalSolver) -> None:
        with pytest.raises(InfeasibleBatchError, match="does not fit in memory: stage"):
            await solving(solver, (4_000,), cluster=tight)
        assert (await solving(solver, LENGTHS)).step == 3

    with_solver(scenario)


def test_a_process_that_is_killed_while_it_plans_is_replaced_and_the_batch_is_planned() -> None:
    async def scenario(solver: LocalSolver) -> None:
        first = pid_of(solver)
        task = asyncio.create_task(solving(solver, LONG_LENGTHS))
        await asyncio.sleep(0.2)
        os.kill(first, signal.SIGKILL)

        assert (await task).step == 3
        assert pid_of(solver) != first

    with_solver(scenario)


def test_a_process_that_is_killed_twice_under_one_batch_is_an_error_and_the_next_batch_is_planned() -> None:
    async def scenario(solver: LocalSolver) -> None:
        task = asyncio.create_task(solving(solver, LONG_LENGTHS))
        for _ in range(2):
            pid = pid_of(solver)
            await asyncio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: task.done() or pid_of(solver) != pid)  # type: ignore[misc]  # bound on purpose

        with pytest.raises(SolverLostError, match="the solver process died twice"):
            await task
        assert (await solving(solver, LENGTHS)).step == 3

    with_solver(scenario)


def test_closing_ends_the_process_and_fails_what_it_plans() -> None:
    async def scenario(solver: LocalSolver) -> None:
        pid = pid_of(solver)
        task = asyncio.create_task(solving(solver, LONG_LENGTHS))
        await asyncio.sleep(0.2)

        await asyncio.to_thread(solver.close)

        with pytest.raises(SolverLostError, match="closed while it planned"):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(SolverLostError, match="the solver is closed"):
            await solving(solver, LENGTHS)

    with_solver(scenario)
