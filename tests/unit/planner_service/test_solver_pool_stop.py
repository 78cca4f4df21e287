"""Solves that nobody wants any longer, processes that are replaced, memory over many solves."""

import asyncio
import time
from pathlib import Path

import pytest

from infinipipe_planner import solver_pool
from infinipipe_planner.errors import SolverTimeoutError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.solver_pool import SolverPool
from support_planner.batches import github_lengths
from support_planner.pool_work import solve_endless, solve_quick
from support_planner.processes import children, wait_for_busy_solver
from support_planner.profiles import llama_profile

pytestmark = pytest.mark.distributed

MANY_SOLVES = 300
GROWTH_BYTES = 8 * 2**20


def solver_processes() -> set[int]:
    return {pid for pid in children() if b"CandidateSolver" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def resident_bytes(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.alone
def test_a_cancelled_solve_frees_its_worker_within_a_second_even_inside_the_solver() -> None:
    pool = SolverPool.start(1)
    try:

        async def cancel_then_solve() -> tuple[float, bool]:
            await solve_quick(pool)
            solve = asyncio.create_task(solve_endless(pool))
            busy = await asyncio.to_thread(wait_for_busy_solver)
            started_s = time.monotonic()
            solve.cancel()
            with pytest.raises(asyncio.CancelledError):
                await solve
            while busy in children():
                await asyncio.sleep(0.005)
            freed_s = time.monotonic() - started_s
            plan = await asyncio.wait_for(solve_quick(pool, step=1), 30)
            return freed_s, plan.step == 1

        freed_s, is_planned = asyncio.run(cancel_then_solve())
    finally:
        pool.close()

    assert freed_s < 1.0
    assert is_planned


def test_cancelling_one_batch_leaves_the_solver_of_another_alone() -> None:
    pool = SolverPool.start(2)
    try:

        async def cancel_one_of_two() -> bool:
            wanted, unwanted = (asyncio.create_task(solve_endless(pool)) for _ in range(2))
            while [task.request.spec.name for task in pool._running if task is not None] != ["K=2", "K=2"]:
                await asyncio.sleep(0.005)
            busy = solver_processes()
            unwanted.cancel()
            await asyncio.gather(unwanted, return_exceptions=True)
            while len(lost := busy - children()) < 1:
                await asyncio.sleep(0.005)
            is_alone = len(lost) == 1 and not wanted.done()
            wanted.cancel()
            await asyncio.gather(wanted, return_exceptions=True)
            return is_alone

        assert asyncio.run(asyncio.wait_for(cancel_one_of_two(), 60))
    finally:
        pool.close()


@pytest.mark.alone
def test_a_batch_that_takes_too_long_is_stopped_and_one_that_waited_behind_it_is_not() -> None:
    reasons: list[str] = []
    pool = SolverPool.start(1, max_solve_s=3.0)
    pool.on_restart(reasons.append)
    try:

        async def solve_both() -> tuple[float, int]:
            endless = asyncio.create_task(solve_endless(pool))
            busy = await asyncio.to_thread(wait_for_busy_solver)
            started_s = time.monotonic()
            following = asyncio.create_task(solve_quick(pool, step=1))
            with pytest.raises(SolverTimeoutError, match=r"stopped after 3 s \(--max-solve-s of the planner\)"):
                await endless
            stopped_s = time.monotonic() - started_s
            plan = await asyncio.wait_for(following, 30)
            assert busy not in children()
            return stopped_s, plan.step

        stopped_s, step = asyncio.run(solve_both())
    finally:
        pool.close()

    assert 2.0 < stopped_s < 10.0
    assert step == 1
    assert reasons == ["overdue"]


def test_a_worn_solver_process_is_replaced_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_pool, "CANDIDATES_PER_PROCESS", 5)
    reasons: list[str] = []
    pool = SolverPool.start(1)
    pool.on_restart(reasons.append)
    try:

        async def solve_some() -> tuple[list[str], int]:
            digests, processes = [], set[int]()
            for _ in range(3):
                digests.append((await solve_quick(pool)).digest)
                processes |= solver_processes()
            return digests, len(processes)

        digests, process_count = asyncio.run(solve_some())
    finally:
        pool.close()

    assert len(set(digests)) == 1
    assert process_count > 1
    assert set(reasons) == {"worn"}


def test_three_hundred_solves_in_a_row_leave_the_memory_of_service_and_solver_flat() -> None:
    lengths, tight = github_lengths(48, 131_072), llama_profile(device_memory_bytes=26e9)
    options = PlanOptions(policy="paper", max_slice_count=2)
    pool = SolverPool.start(1)
    try:

        async def solve_many() -> tuple[list[int], list[int], float]:
            service, solver, recompute_ratio = [], [], 1.0
            for step in range(MANY_SOLVES):
                plan = await pool.solve(SolveRequest(lengths, tight, options, step=step))
                recompute_ratio = min(recompute_ratio, plan.estimate.recompute_ratio)
                if step in (MANY_SOLVES // 6, MANY_SOLVES - 1):
                    (only,) = solver_processes()
                    service.append(resident_bytes("self"))
                    solver.append(resident_bytes(only))
            return service, solver, recompute_ratio

        service, solver, recompute_ratio = asyncio.run(solve_many())
    finally:
        pool.close()

    assert recompute_ratio > 0, "without recompute the integer program was not needed"
    assert service[1] - service[0] < GROWTH_BYTES
    assert solver[1] - solver[0] < GROWTH_BYTES
