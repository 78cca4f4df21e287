"""How a solver pool ends: by lost processes, or closed with work left."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.solver_pool import SolverPool
from support_planner.pool_work import solve_endless, solve_quick
from support_planner.processes import children, wait_for_busy_solver
from support_service.process import ray_directories

pytestmark = pytest.mark.distributed


def test_a_solver_killed_twice_under_one_candidate_fails_the_batch_with_its_memory_and_not_the_pool() -> None:
    reasons: list[str] = []
    pool = SolverPool.start(1)
    pool.on_restart(reasons.append)
    try:

        async def solve_and_kill_twice() -> None:
            solve = asyncio.create_task(solve_endless(pool))
            busy = 0
            for _ in range(2):
                # Until the candidate that takes for ever is built, and the memory of its process has been looked at.
                while [task.request.spec.name for task in pool._running if task is not None] != ["K=2"]:
                    await asyncio.sleep(0.05)
                busy = await asyncio.to_thread(wait_for_busy_solver, busy)
                while not pool._keeper.peak_bytes(0):
                    await asyncio.sleep(0.05)
                os.kill(busy, signal.SIGKILL)
            await solve

        with pytest.raises(
            SolverLostError,
            match=r"solver process 0 died twice .*: [\d.]+ MiB of memory when last seen; .*\(SYSTEM_ERROR: ",
        ):
            asyncio.run(solve_and_kill_twice())
        assert asyncio.run(solve_quick(pool, step=2)).step == 2
        assert reasons[:2] == ["lost", "lost"]
    finally:
        pool.close()


def test_closing_fails_the_batches_that_wait_and_leaves_nothing_behind() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    others = children()
    pool = SolverPool.start(1)
    assert signal.getsignal(signal.SIGTERM) == handler
    started = children() - others
    directories = ray_directories({pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in started})

    async def solve_and_close() -> list[ExecutionPlan | BaseException]:
        solves = [asyncio.create_task(solve_endless(pool)) for _ in range(3)]
        await asyncio.to_thread(wait_for_busy_solver)
        await asyncio.to_thread(pool.close)
        return await asyncio.gather(*solves, return_exceptions=True)

    outcomes = asyncio.run(solve_and_close())

    assert all(isinstance(outcome, SolverLostError) for outcome in outcomes), outcomes
    assert started, "the pool should have started processes"
    assert not started & children()
    assert directories
    assert not [path for path in directories if path.exists()]
    with pytest.raises(SolverLostError, match="the solver pool is closed"):
        asyncio.run(solve_quick(pool))


def test_the_event_loop_turns_while_a_solver_is_busy_for_ever() -> None:
    """In this process the solver would hold the interpreter, and the loop with it, until its end."""
    pool = SolverPool.start(1)
    try:

        async def turn_while_busy() -> bool:
            solve = asyncio.create_task(solve_endless(pool))
            await asyncio.to_thread(wait_for_busy_solver)
            for _ in range(100):
                await asyncio.wait_for(asyncio.sleep(0.01), 10)
            is_busy = not solve.done()
            await asyncio.to_thread(pool.close)
            await asyncio.gather(solve, return_exceptions=True)
            return is_busy

        assert asyncio.run(asyncio.wait_for(turn_while_busy(), 60))
    finally:
        pool.close()
