"""Solver processes: the candidates of a batch are built in parallel by Ray actors.

SCIP holds the interpreter while it runs and may die with its process, so it never runs in the service's own. A thread
per actor takes candidates from one queue, first come first served, so batches are planned in the order they came.

A solver process may go at any time: lost to a crash, replaced after ``CANDIDATES_PER_PROCESS`` candidates, or killed
because nobody wants any longer what it builds: SCIP cannot be interrupted, its process can.
"""

import asyncio
import contextlib
import functools
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.local_solver import OnRestart
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, solve_candidate
from infinipipe_planner.ray_directory import RayDirectory, sweep_directories
from infinipipe_planner.solve import solve_plan

logger = logging.getLogger(__name__)

CANDIDATES_PER_PROCESS = 1_000
"""Candidates that a solver process builds before another takes its place: what a solver forgets to free goes with its
process. With a batch of eight candidates every ten seconds and two workers that is once in 40 minutes."""

_RAY_PARENT = Path("/tmp")
_OBJECT_STORE_BYTES = 100 * 2**20
_START_TIMEOUT_S = 60.0
# Of each of Ray's own log files, which lie in the instance's folder and go with it; Ray itself would keep 6 x 100 MiB.
_RAY_LOG_BYTES = 2**20

# Read by Ray when it is imported or started.
_LOCAL_RAY_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on loopback only
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call must not start an instance of Ray's own choice
    "RAY_AUTH_MODE": "disabled",  # no token file in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ROTATION_MAX_BYTES": str(_RAY_LOG_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about a default that matters with GPUs only
}


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _CandidateSolver:
    """Body of an actor."""

    def solve(self, request: CandidateRequest) -> CandidateResult:
        """Build one candidate."""
        return solve_candidate(request)


class _Ray:
    """A connection to Ray: an instance of its own on loopback, or a cluster that exists.

    Ray is imported here, not with the module, because it reads its environment on import.
    """

    def __init__(self, num_workers: int, address: str | None) -> None:
        if _is_connected():
            raise RuntimeError("this process already has a solver pool; close it before starting another")
        self._directory: RayDirectory | None = None
        where: dict[str, Any] = {"address": address}
        if address is None:
            for name, value in _LOCAL_RAY_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            for swept in sweep_directories(_RAY_PARENT):
                logger.warning("removed %s, its planner had been killed", swept)
            self._directory = RayDirectory(_RAY_PARENT)
            where = {
                "address": "local",
                "num_cpus": num_workers,
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(self._directory.path),
            }
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415

        self._ray = ray
        # One class for all actors: every class that Ray is shown stays in its tables.
        self._solver_class = ray.remote(num_cpus=1)(_CandidateSolver)
        self.lost_errors = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**where, log_to_driver=False, logging_level=logging.WARNING)
        except BaseException:
            self.close()
            raise
        finally:
            # Ray takes SIGTERM for itself; how the process ends is its owner's business.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)

    def start_actor(self) -> Any:  # noqa: ANN401  # Ray's handles are untyped
        """Start a solver process; returns its handle at once."""
        return self._solver_class.remote()

    def wait_ready(self, actors: Sequence[Any]) -> None:
        """Wait until solver processes have started."""
        self._ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=_START_TIMEOUT_S)

    def solve(self, actor: Any, request: CandidateRequest) -> CandidateResult:  # noqa: ANN401
        """Build a candidate in a solver process and wait for it."""
        result: CandidateResult = self._ray.get(actor.solve.remote(request))
        return result

    def kill(self, actor: Any) -> None:  # noqa: ANN401
        """End a solver process, whatever it does."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Disconnect; an instance of its own ends and leaves no file."""
        self._ray.shutdown()
        if self._directory is not None:
            self._directory.remove()


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A candidate on its way through a solver process."""

    request: CandidateRequest
    future: Future[CandidateResult] = field(default_factory=Future)


class SolverPool:
    """A fixed number of solver processes that serve many batches.

    Use ``SolverPool.start`` to make one and ``close`` to end it.
    """

    def __init__(self, ray: _Ray, actors: Sequence[Any], on_restart: OnRestart) -> None:
        self._ray = ray
        self._on_restart = on_restart
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._actors = list(actors)
        self._built_counts = [0] * len(actors)
        # What every actor works on; who takes a task out of here decides how it ends.
        self._running: list[_Task | None] = [None] * len(actors)
        # Held to change what is running, to replace or kill an actor, and to close: nothing starts behind a close.
        self._lock = threading.Lock()
        self._servers = [
            threading.Thread(target=self._serve, args=(number,), name=f"solver-{number}")
            for number in range(len(actors))
        ]
        for server in self._servers:
            server.start()
        # One more than actors, so that the next batch is queued before an actor runs dry.
        self._solves = ThreadPoolExecutor(len(actors) + 1, thread_name_prefix="solve")

    @classmethod
    def start(
        cls, num_workers: int, *, ray_address: str | None = None, on_restart: OnRestart = lambda _: None
    ) -> "SolverPool":
        """Start solver processes and wait until they are ready.

        Args:
            num_workers: Solver processes, at least 1.
            ray_address: Ray cluster to use; None starts an instance of its own that only listens on loopback.
            on_restart: Is told in one word why a solver process is replaced; called in another thread.
        """
        if num_workers < 1:
            raise ValueError(f"the solver pool needs at least 1 worker, {num_workers} were asked for")
        ray = _Ray(num_workers, ray_address)
        try:
            actors = [ray.start_actor() for _ in range(num_workers)]
            ray.wait_ready(actors)
        except BaseException:
            ray.close()
            raise
        return cls(ray, actors, on_restart)

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
        """Plan one training step on the solver processes; see ``solve_plan``.

        The event loop stays free meanwhile. Cancelling drops the candidates that wait, and kills the solver processes
        that build one: others take their place.

        Raises:
            SolverLostError: If a candidate lost its solver process twice, or the pool was closed.
        """
        is_unwanted = threading.Event()
        under_way: list[_Task] = []

        def run_candidates(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
            tasks = [_Task(request) for request in requests]
            under_way[:] = tasks
            # Asked after the tasks can be seen: whoever stops the batch now finds them.
            if is_unwanted.is_set():
                raise SolverLostError("the batch is no longer wanted")
            for task in tasks:
                self._enqueue(task)
            try:
                return [task.future.result() for task in tasks]
            except CancelledError:
                # As it is, asyncio would take it for the caller's own cancellation.
                raise SolverLostError("the solver pool was closed before the batch was planned") from None
            finally:
                self._stop(tasks)

        solve = functools.partial(
            solve_plan,
            lengths,
            profile,
            options,
            job=job,
            generation=generation,
            step=step,
            target_token_count=target_token_count,
            run_candidates=run_candidates,
        )
        if self._is_closing.is_set():
            raise SolverLostError("the solver pool is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._solves, solve)
        except asyncio.CancelledError:
            is_unwanted.set()
            self._stop(list(under_way))
            raise

    def close(self) -> None:
        """End every solver process; batches that still wait fail with ``SolverLostError``. Safe to call twice."""
        with self._lock:
            if self._is_closing.is_set():
                return
            self._is_closing.set()
            with contextlib.suppress(queue.Empty):
                while True:
                    task = self._queue.get_nowait()
                    if task is not None:
                        task.future.cancel()
            for actor in self._actors:
                self._queue.put(None)
                self._ray.kill(actor)
        for server in self._servers:
            server.join()
        # Not cancelled: batches that did not start fail like the others, for asyncio would blame the caller.
        self._solves.shutdown()
        self._ray.close()

    def _enqueue(self, task: _Task) -> None:
        with self._lock:
            if self._is_closing.is_set():
                task.future.cancel()
            else:
                self._queue.put(task)

    def _stop(self, tasks: Sequence[_Task]) -> None:
        """Drop tasks that nobody waits for; the solver processes that work on one are killed."""
        with self._lock:
            for task in tasks:
                if not task.future.cancel() and task in self._running:
                    number = self._running.index(task)
                    self._running[number] = None
                    self._ray.kill(self._actors[number])

    def _serve(self, number: int) -> None:
        """Feed one actor until the pool closes."""
        while (task := self._queue.get()) is not None:
            with self._lock:
                if not task.future.set_running_or_notify_cancel():
                    continue
                self._running[number] = task
            try:
                result = self._build(number, task)
            except Exception as error:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)

    def _build(self, number: int, task: _Task) -> CandidateResult:
        """Build one candidate and leave an actor that can build the next one."""
        try:
            return self._solve_with_retry(number, task)
        finally:
            self._built_counts[number] += 1
            with self._lock:
                was_stopped = self._running[number] is not task
                self._running[number] = None
                is_worn = self._built_counts[number] >= CANDIDATES_PER_PROCESS
                if (was_stopped or is_worn) and not self._is_closing.is_set():
                    self._replace_actor(number, "unwanted" if was_stopped else "worn")

    def _solve_with_retry(self, number: int, task: _Task) -> CandidateResult:
        for _ in range(2):
            try:
                return self._ray.solve(self._actors[number], task.request)
            except self._ray.lost_errors as error:
                with self._lock:
                    if self._is_closing.is_set():
                        raise SolverLostError("the solver pool was closed while it planned") from None
                    if self._running[number] is not task:
                        raise SolverLostError("the batch is no longer wanted") from None
                    self._replace_actor(number, "lost")
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                logger.warning("solver process %d was lost, another one takes its place: %s", number, reason)
        raise SolverLostError(
            f"solver process {number} died twice while it built the candidate {task.request.spec.name}"
        )

    def _replace_actor(self, number: int, reason: str) -> None:
        self._on_restart(reason)
        self._ray.kill(self._actors[number])
        self._actors[number] = self._ray.start_actor()
        self._built_counts[number] = 0
