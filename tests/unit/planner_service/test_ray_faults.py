"""What Ray's faults cost: a solver process without a core, a cluster that is away, errors of Ray's own, strangers."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner import ray_connection
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.ray_connection import Actor, NoRayClusterError, RayConnection, is_loss
from infinipipe_planner.solver_pool import SolverPool
from support_planner.pool_work import solve_endless, solve_quick
from support_planner.processes import wait_for_busy_solver

pytestmark = [pytest.mark.distributed, pytest.mark.alone, pytest.mark.timeout(120)]

LIMIT_S = 60.0


def take_core() -> Callable[[], None]:
    """Have somebody wait for a core of the pool's Ray: he is first when one is free; returns what gives it back."""
    import ray  # noqa: PLC0415  # the pool sets the environment that Ray reads on import

    class Hog:
        """Holds a core."""

    hog: Any = ray.remote(num_cpus=1)(Hog).remote()
    time.sleep(2.0)  # until it stands in the queue for the core; there is no other sign of that

    def give_back() -> None:
        ray.kill(hog)

    return give_back


def start_first_without_core() -> Callable[[RayConnection], Actor]:
    """Have the next solver process wait for more cores than there are, and those after it start as ever."""
    start, starts = RayConnection.start_actor, itertools.count()

    def start_actor(connection: RayConnection) -> Actor:
        if next(starts):
            return start(connection)
        solver_class: Any = connection._solver_class
        handle = solver_class.options(num_cpus=10_000).remote()
        return Actor(handle, handle.process_id.remote(), time.monotonic() + ray_connection.START_TIMEOUT_S)

    return start_actor


def wait_until_told(told: list[bool], what: list[bool]) -> None:
    """Wait for the pool to have said when solvers were gone and back."""
    deadline_s = time.monotonic() + LIMIT_S
    while told != what and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert told == what


def test_a_lost_solver_process_that_finds_no_core_fails_its_batch_in_time_and_works_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = SolverPool.start(1)
    told: list[bool] = []
    pool.on_availability(told.append)
    try:
        give_back = take_core()
        monkeypatch.setattr(ray_connection, "START_TIMEOUT_S", 3.0)

        async def lose_core() -> None:
            endless = asyncio.create_task(solve_endless(pool))
            os.kill(await asyncio.to_thread(wait_for_busy_solver), signal.SIGKILL)
            await endless

        with pytest.raises(SolverLostError, match="solver process 0 was lost, the one in its place is not started"):
            asyncio.run(asyncio.wait_for(lose_core(), LIMIT_S))
        since_s = time.monotonic()
        with pytest.raises(SolverLostError, match="not started within 3 s"):
            asyncio.run(asyncio.wait_for(solve_quick(pool), LIMIT_S))
        assert time.monotonic() - since_s < 2.0, "the time of the process was over, nobody should wait once more"
        wait_until_told(told, [False])

        give_back()

        async def solve_in_time() -> ExecutionPlan:
            while True:
                try:
                    return await solve_quick(pool, step=3)
                except SolverLostError:
                    await asyncio.sleep(0.2)

        assert asyncio.run(asyncio.wait_for(solve_in_time(), LIMIT_S)).step == 3
        wait_until_told(told, [False, True])
    finally:
        pool.close()


def test_a_solver_process_without_a_core_leaves_the_batches_to_the_other_one_and_the_pool_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = SolverPool.start(2)
    try:
        monkeypatch.setattr(ray_connection, "START_TIMEOUT_S", 5.0)
        monkeypatch.setattr(RayConnection, "start_actor", start_first_without_core())

        async def lose_core() -> None:
            endless = asyncio.create_task(solve_endless(pool))
            os.kill(await asyncio.to_thread(wait_for_busy_solver), signal.SIGKILL)
            await endless

        with pytest.raises(SolverLostError, match="not started within 5 s"):
            asyncio.run(asyncio.wait_for(lose_core(), LIMIT_S))

        async def solve_many() -> list[int]:
            return [plan.step for plan in await asyncio.gather(*(solve_quick(pool, step) for step in range(4)))]

        assert asyncio.run(asyncio.wait_for(solve_many(), LIMIT_S)) == [0, 1, 2, 3]
    finally:
        since_s = time.monotonic()
        pool.close()
    assert time.monotonic() - since_s < 30.0


def test_other_users_without_the_token_are_refused_by_the_ray_of_a_pool() -> None:
    pool = SolverPool.start(1)
    try:
        import ray  # noqa: PLC0415  # see above

        address = ray.get_runtime_context().gcs_address
        ask = (
            "import sys\nfrom ray._raylet import GcsClient\n"
            "print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)))"
        )

        def ask_as(**authentication: str) -> subprocess.CompletedProcess[str]:
            variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
            return subprocess.run(
                [sys.executable, "-c", ask, address],
                env=variables | authentication,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )

        assert ask_as(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=os.environ["RAY_AUTH_TOKEN"]).stdout == "1\n"
        for stranger in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
            answer = ask_as(**stranger)
            assert answer.returncode != 0, answer
            assert not answer.stdout
    finally:
        pool.close()


def test_every_error_of_ray_but_what_a_candidate_raised_is_a_loss() -> None:
    import ray.exceptions  # noqa: PLC0415  # see above

    errors = [error for error in vars(ray.exceptions).values() if isinstance(error, type)]
    losses = {error.__name__ for error in errors if issubclass(error, Exception) and is_loss(error.__new__(error))}

    assert losses >= {
        "ActorDiedError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        "GetTimeoutError",
        "LocalRayletDiedError",
        "NodeDiedError",
        "ObjectLostError",
        "OutOfMemoryError",
        "OwnerDiedError",
        "RaySystemError",
        "WorkerCrashedError",
    }
    assert "RayTaskError" not in losses
    task_error: Any = ray.exceptions.RayTaskError
    assert not is_loss(task_error("solve", "traceback", ValueError("a candidate's own")).as_instanceof_cause())
    assert not is_loss(ValueError("a candidate's own"))


def test_a_cluster_that_is_away_is_told_before_ray_tries_for_minutes() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        since_s = time.monotonic()
        with pytest.raises(NoRayClusterError, match=f"no Ray cluster at {address}: Connection refused"):
            RayConnection(1, address)
    assert time.monotonic() - since_s < 10.0


def test_a_cluster_that_accepts_connections_and_never_answers_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "ANSWER_TIMEOUT_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        since_s = time.monotonic()
        with pytest.raises(
            NoRayClusterError, match=f"no Ray cluster at {address}: it accepts connections, and does not answer as Ray"
        ):
            RayConnection(1, address)
    assert time.monotonic() - since_s < 10.0


def test_a_look_at_ray_or_a_close_that_fails_does_not_end_the_watcher(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = SolverPool.start(1)
    told: list[bool] = []
    close = RayConnection.close

    def fail_to_look(_: RayConnection) -> bool:
        monkeypatch.undo()
        monkeypatch.setattr(RayConnection, "close", fail_to_close)
        raise RuntimeError("dictionary changed size during iteration")

    def fail_to_close(self: RayConnection) -> None:
        monkeypatch.undo()
        close(self)
        raise OSError("the folder is busy")

    try:
        pool.on_availability(told.append)
        monkeypatch.setattr(RayConnection, "is_alive", fail_to_look)
        wait_until_told(told, [False, True])
        assert asyncio.run(solve_quick(pool, step=4)).step == 4
        assert "cannot tell whether Ray is there" in caplog.text
        assert "what is left of Ray did not close" in caplog.text
    finally:
        pool.close()
