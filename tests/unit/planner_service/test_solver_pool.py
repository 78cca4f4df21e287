"""Solver processes: right answers, a free event loop, lost processes, nothing left behind."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.errors import InfeasibleBatchError, InvalidOptionsError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.solver_pool import SolverPool
from support_contract import with_replicas
from support_planner.pool_work import PROFILE, QUICK, QUICK_OPTIONS, solve_quick, solve_slow
from support_planner.processes import wait_for_busy_solver
from support_planner.profiles import llama_profile

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def pool() -> Iterator[SolverPool]:
    pool = SolverPool.start(2)
    yield pool
    pool.close()


def test_a_plan_of_the_pool_equals_the_plan_made_in_process(pool: SolverPool) -> None:
    plan = asyncio.run(solve_quick(pool, step=3))

    assert plan.digest == solve_plan(QUICK, PROFILE, QUICK_OPTIONS, job="job", generation=1, step=3).digest


def test_the_shares_of_replicas_are_planned_by_the_pool_as_in_process(pool: SolverPool) -> None:
    profile = with_replicas(PROFILE, 2)

    plan = asyncio.run(pool.solve(SolveRequest(QUICK, profile, QUICK_OPTIONS)))

    assert plan.digest == solve_plan(QUICK, profile, QUICK_OPTIONS).digest
    assert {pipeline.replica_index for pipeline in plan.pipelines} == {0, 1}


def test_many_batches_at_once_all_get_their_own_plan(pool: SolverPool) -> None:
    async def solve_all() -> list[ExecutionPlan]:
        return await asyncio.gather(*(solve_quick(pool, step) for step in range(12)))

    plans = asyncio.run(solve_all())

    assert [plan.step for plan in plans] == list(range(12))
    assert len({plan.digest for plan in plans}) == 12


def test_batches_are_planned_in_the_order_they_came(pool: SolverPool) -> None:
    finished: list[int] = []

    async def solve_and_note(step: int) -> None:
        await solve_quick(pool, step)
        finished.append(step)

    async def solve_all() -> None:
        await asyncio.gather(*(solve_and_note(step) for step in range(8)))

    asyncio.run(solve_all())

    # Neighbours may swap, as their last candidates run side by side.
    assert all(abs(place - step) <= 2 for place, step in enumerate(finished))


def test_errors_of_a_candidate_reach_the_caller(pool: SolverPool) -> None:
    short = llama_profile(device_memory_bytes=6e9)

    async def solve(options: PlanOptions) -> ExecutionPlan:
        return await pool.solve(SolveRequest(QUICK, short, options))

    with pytest.raises(InfeasibleBatchError, match="stage"):
        asyncio.run(solve(PlanOptions()))
    with pytest.raises(InvalidOptionsError, match="unknown policy"):
        asyncio.run(solve(PlanOptions(policy="none")))


def test_a_solver_killed_once_costs_nothing_but_time(pool: SolverPool) -> None:
    async def solve_and_kill() -> ExecutionPlan:
        solve = asyncio.create_task(solve_slow(pool))
        os.kill(await asyncio.to_thread(wait_for_busy_solver), signal.SIGKILL)
        return await solve

    plan = asyncio.run(solve_and_kill())

    assert plan.digest == asyncio.run(solve_slow(pool)).digest


def test_cancelled_solves_leave_the_queue_to_the_next(pool: SolverPool) -> None:
    async def cancel_then_solve() -> ExecutionPlan:
        solves = [asyncio.create_task(solve_slow(pool)) for _ in range(200)]
        await asyncio.to_thread(wait_for_busy_solver)
        for solve in solves:
            solve.cancel()
        await asyncio.gather(*solves, return_exceptions=True)
        return await asyncio.wait_for(solve_quick(pool, step=1), 40)  # 200 slow batches take minutes

    assert asyncio.run(cancel_then_solve()).step == 1


def test_a_second_pool_in_one_process_is_refused_and_the_first_lives_on(pool: SolverPool) -> None:
    with pytest.raises(RuntimeError, match="already has a solver pool"):
        SolverPool.start(1)

    assert asyncio.run(solve_quick(pool, step=4)).step == 4


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 worker, 0 were asked for"):
        SolverPool.start(0)
