"""Ray lost as a whole: started again, the batch planned once more, and everybody told."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner import ray_keeper
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.ray_connection import RayConnection
from infinipipe_planner.solve import solve_plan
from infinipipe_planner.solver_pool import SolverPool
from support_planner.pool_work import PROFILE, QUICK, QUICK_OPTIONS, solve_endless, solve_quick
from support_planner.processes import children, wait_for_busy_solver

pytestmark = [pytest.mark.distributed, pytest.mark.alone, pytest.mark.timeout(240)]


WAIT_S = 120.0
"""Ray starts in 4 s, in 30 s where ten others want the same core."""


def kill_ray(others: set[int]) -> None:
    """Kill every process below this one that was not there before the pool."""
    for pid in children() - others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_ray_lost_during_a_solve_costs_time_and_nothing_else() -> None:
    others, told = children(), list[bool]()
    pool = SolverPool.start(1)
    try:
        pool.on_availability(told.append)

        async def lose_ray() -> ExecutionPlan:
            endless = asyncio.create_task(solve_endless(pool))
            busy = await asyncio.to_thread(wait_for_busy_solver)
            quick = asyncio.create_task(solve_quick(pool, step=1))  # waits for the only solver
            await asyncio.to_thread(kill_ray, others)
            await asyncio.to_thread(wait_for_busy_solver, busy, WAIT_S)  # the same batch, once more
            endless.cancel()
            return await quick

        plan = asyncio.run(asyncio.wait_for(lose_ray(), WAIT_S))

        assert told == [False, True]
        assert plan.digest == solve_plan(QUICK, PROFILE, QUICK_OPTIONS, job="job", generation=1, step=1).digest
    finally:
        pool.close()
    assert not children() - others


def test_ray_that_does_not_start_again_fails_the_batch_at_once_and_is_tried_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others, is_back = children(), threading.Event()
    pool = SolverPool.start(1)
    start = RayConnection.__init__

    def fail(*_: object) -> None:
        raise OSError("no memory for the object store")

    try:
        pool.on_availability(lambda is_available: is_back.set() if is_available else is_back.clear())
        monkeypatch.setattr(ray_keeper, "FIRST_PAUSE_S", 0.1)
        monkeypatch.setattr(RayConnection, "__init__", fail)

        async def lose_ray() -> None:
            endless = asyncio.create_task(solve_endless(pool))
            await asyncio.to_thread(wait_for_busy_solver, 0, WAIT_S)
            await asyncio.to_thread(kill_ray, others)
            await endless

        with pytest.raises(SolverLostError, match="Ray was lost and did not start again"):
            asyncio.run(asyncio.wait_for(lose_ray(), WAIT_S))
        assert not is_back.is_set()

        monkeypatch.setattr(RayConnection, "__init__", start)
        assert is_back.wait(WAIT_S)
        assert asyncio.run(solve_quick(pool, step=2)).step == 2
    finally:
        pool.close()
