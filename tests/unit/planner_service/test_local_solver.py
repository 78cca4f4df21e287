"""The solver without Ray: a child process that plans as this one would, and whose end is an ordinary event."""

import asyncio
import contextlib
import dataclasses
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from infinipipe_contract.validate import validate
from infinipipe_planner import local_solver, solver_process
from infinipipe_planner.config import MAX_SOLVE_S
from infinipipe_planner.errors import InfeasibleBatchError, SolverLostError, SolverStoppedError, SolverTimeoutError
from infinipipe_planner.local_solver import LocalSolver
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from infinipipe_planner.solve_request import SolveRequest
from support_planner.pool_work import solve_endless, time_out
from support_service import PROFILE, until

LENGTHS = (900, 5, 7, 60, 350)
LONG_LENGTHS = tuple(1 + (index * 977) % 4_096 for index in range(400))


DIED_TWICE = r"died twice while it planned the batch \(ended by SIGKILL, [\d.]+ MiB of memory when last seen\)"


def with_solver(
    scenario: Callable[[LocalSolver], Coroutine[Any, Any, None]], *, max_solve_s: float = MAX_SOLVE_S
) -> None:
    """Run a scenario with a solver of its own."""

    async def run() -> None:
        async with asyncio.timeout(60):
            await scenario(solver)

    solver = LocalSolver.start(max_solve_s=max_solve_s)
    try:
        asyncio.run(run())
    finally:
        solver.close()


def solving(solver: LocalSolver, lengths: tuple[int, ...], **changes: Any) -> Coroutine[Any, Any, Any]:
    profile = dataclasses.replace(PROFILE, **changes)
    return solver.solve(SolveRequest(lengths, profile, PlanOptions(), job="a", generation=2, step=3))


def pid_of(solver: LocalSolver) -> int:
    assert solver._process is not None
    pid = solver._process._process.pid
    assert pid is not None
    return pid


@contextlib.contextmanager
def no_further_files() -> Iterator[None]:
    """Let this process open nothing; what is open stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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


def test_a_process_that_is_killed_twice_under_one_batch_is_an_error_with_how_and_the_next_batch_is_planned() -> None:
    async def scenario(solver: LocalSolver) -> None:
        task = asyncio.create_task(solve_endless(solver))
        for _ in range(2):
            pid = pid_of(solver)
            while not solver._process or not solver._process._peak_bytes:  # until its memory has been looked at
                await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            await until(
                lambda pid=pid: task.done() or (solver._process is not None and pid_of(solver) != pid)  # type: ignore[misc]  # bound on purpose
            )

        with pytest.raises(SolverLostError, match=DIED_TWICE):
            await task
        assert (await solving(solver, LENGTHS)).step == 3

    with_solver(scenario)


def test_closing_ends_the_process_and_fails_what_it_plans() -> None:
    async def scenario(solver: LocalSolver) -> None:
        pid = pid_of(solver)
        tasks = [asyncio.create_task(solve_endless(solver)) for _ in range(2)]
        await asyncio.sleep(0.2)

        await asyncio.to_thread(solver.close)

        for task in tasks:  # the second one has not started: its caller is not told that it cancelled
            with pytest.raises(SolverStoppedError, match="closed while it planned"):
                await task
        assert not is_alive(pid)
        with pytest.raises(SolverStoppedError, match="the solver is closed"):
            await solving(solver, LENGTHS)

    with_solver(scenario)


def test_a_batch_that_nobody_wants_any_longer_ends_with_its_process_and_the_next_one_is_planned() -> None:
    reasons: list[str] = []

    async def scenario(solver: LocalSolver) -> None:
        solver.on_restart(reasons.append)
        first = pid_of(solver)
        endless = asyncio.create_task(solve_endless(solver))
        following = asyncio.create_task(solving(solver, LENGTHS))
        await asyncio.sleep(0.5)

        endless.cancel()

        assert (await following).step == 3
        assert not is_alive(first)
        assert reasons == ["unwanted"]

    with_solver(scenario)


def test_a_batch_that_is_cancelled_while_it_waits_leaves_the_one_that_is_planned_alone() -> None:
    async def scenario(solver: LocalSolver) -> None:
        first = pid_of(solver)
        planned = asyncio.create_task(solving(solver, LONG_LENGTHS))
        waiting = asyncio.create_task(solve_endless(solver))
        await asyncio.sleep(0.2)

        waiting.cancel()

        assert (await planned).step == 3
        assert (await solving(solver, LENGTHS)).step == 3
        assert pid_of(solver) == first

    with_solver(scenario)


def test_a_batch_that_takes_too_long_ends_with_its_process_and_the_next_one_has_its_full_time() -> None:
    reasons: list[str] = []

    async def scenario(solver: LocalSolver) -> None:
        solver.on_restart(reasons.append)
        first = pid_of(solver)
        endless = asyncio.create_task(solve_endless(solver))
        following = asyncio.create_task(solving(solver, LENGTHS))

        with pytest.raises(SolverTimeoutError, match=r"stopped after 3 s \(--max-solve-s of the planner\)"):
            await endless
        assert (await following).step == 3
        assert not is_alive(first)
        assert reasons == ["overdue"]

    with_solver(scenario, max_solve_s=3.0)


def test_an_error_of_the_system_in_the_process_is_an_answer_and_not_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(solver: LocalSolver) -> None:
        first = pid_of(solver)
        with monkeypatch.context() as patch:
            patch.setattr(local_solver, "solve_request", time_out)
            with pytest.raises(TimeoutError, match="took too long"):
                await solving(solver, LENGTHS)
        assert (await solving(solver, LENGTHS)).step == 3
        assert pid_of(solver) == first

    with_solver(scenario)


def test_a_process_that_does_not_start_is_a_lost_solver_and_the_next_batch_tries_again() -> None:
    async def scenario(solver: LocalSolver) -> None:
        os.kill(pid_of(solver), signal.SIGKILL)
        with no_further_files(), pytest.raises(SolverLostError, match=r"did not start: .*Too many open files"):
            await solving(solver, LENGTHS)
        assert (await solving(solver, LENGTHS)).step == 3

    with_solver(scenario)


def test_a_process_that_hangs_while_it_starts_is_killed_and_a_lost_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(solver: LocalSolver) -> None:
        os.kill(pid_of(solver), signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(solver_process, "READY_TIMEOUT_S", 0.01)
            with pytest.raises(SolverLostError, match=r"did not start within 0\.01 s"):
                await solving(solver, LENGTHS)
        assert (await solving(solver, LENGTHS)).step == 3

    with_solver(scenario)


def test_a_worn_process_is_replaced_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_solver, "BATCHES_PER_PROCESS", 2)
    reasons: list[str] = []

    async def scenario(solver: LocalSolver) -> None:
        solver.on_restart(reasons.append)
        first = pid_of(solver)
        digests = {(await solving(solver, LENGTHS)).digest for _ in range(5)}

        assert len(digests) == 1
        assert not is_alive(first)
        assert reasons == ["worn", "worn"]

    with_solver(scenario)
