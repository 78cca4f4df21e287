"""Solver processes: the candidates of a batch are built in parallel by Ray actors.

SCIP holds the interpreter while it runs and may die with its process, so it never runs in the service's own. A thread
per actor takes candidates from one queue, first come first served, so batches are planned in the order they came.

A solver process may go at any time: lost to a crash, replaced after ``CANDIDATES_PER_PROCESS`` candidates, or killed
because nobody wants any longer what it builds or its batch takes too long: SCIP cannot be interrupted, its process can.
Ray itself may go with all of them and is started again (``ray_keeper.py``). Candidates that were under way are built
once more.
"""

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.config import MAX_SOLVE_S
from infinipipe_planner.errors import SolverLostError, SolverStoppedError, SolverTimeoutError
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult
from infinipipe_planner.ray_connection import (
    Actor,
    ProcessLostError,
    ProcessNotStartedError,
    RayConnection,
    RayLostError,
)
from infinipipe_planner.ray_keeper import RayKeeper
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.work_clock import WorkClock

logger = logging.getLogger(__name__)

CANDIDATES_PER_PROCESS = 1_000
"""Candidates that a solver process builds before another takes its place: what a solver forgets to free goes with its
process. With a batch of eight candidates every ten seconds and two workers that is once in 40 minutes."""

START_POLL_S = 0.1
"""Seconds between two looks at whether a solver process has started."""


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that somebody waits for.

    Attributes:
        tasks: Its candidates that are to be built now.
        clock: How long solver processes have worked on it.
        is_unwanted: Whether nobody waits for it any longer.
        is_overdue: Whether it was stopped because it took too long.
    """

    tasks: Sequence["_Task"] = ()
    clock: WorkClock = field(default_factory=WorkClock)
    is_unwanted: bool = False
    is_overdue: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A candidate on its way through a solver process."""

    batch: _Batch
    request: CandidateRequest
    future: Future[CandidateResult] = field(default_factory=Future)


class SolverPool:
    """A fixed number of solver processes that serve many batches.

    Use ``SolverPool.start`` to make one and ``close`` to end it.
    """

    def __init__(self, keeper: RayKeeper, max_solve_s: float) -> None:
        self._keeper = keeper
        self._max_solve_s = max_solve_s
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # What every process works on; who takes a task out of here decides how it ends. The keeper's lock is held to
        # change it, and to close: nothing starts behind a close.
        self._running: list[_Task | None] = [None] * keeper.worker_count
        self._servers = [
            threading.Thread(target=self._serve, args=(number,), name=f"solver-{number}")
            for number in range(keeper.worker_count)
        ]
        keeper.watch(self._stop_overdue)
        for thread in self._servers:
            thread.start()
        # One more than processes, so that the next batch is queued before a process runs dry.
        self._solves = ThreadPoolExecutor(keeper.worker_count + 1, thread_name_prefix="solve")

    @classmethod
    def start(
        cls, num_workers: int, *, ray_address: str | None = None, max_solve_s: float = MAX_SOLVE_S
    ) -> "SolverPool":
        """Start solver processes and wait until they are ready.

        Args:
            num_workers: Solver processes, at least 1.
            ray_address: Ray cluster to use; None starts an instance of its own that only listens on loopback.
            max_solve_s: Seconds that solver processes may work on one batch.
        """
        if num_workers < 1:
            raise ValueError(f"the solver pool needs at least 1 worker, {num_workers} were asked for")
        return cls(RayKeeper.start(num_workers, ray_address), max_solve_s)

    def on_availability(self, tell: Callable[[bool], None]) -> None:
        """Have somebody told, from another thread, when the solvers are gone and when they are back."""
        self._keeper.on_availability(tell)

    def on_restart(self, tell: Callable[[str], None]) -> None:
        """Have somebody told, from another thread, why a process is replaced: lost, worn, unwanted, overdue; or ray."""
        self._keeper.on_restart(tell)

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        """Plan one training step on the solver processes; see ``solve_request``.

        The event loop stays free meanwhile. Cancelling drops the candidates that wait, and kills the solver processes
        that build one: others take their place.

        Raises:
            SolverLostError: If a candidate lost its solver process twice, or Ray twice, or none of them starts again.
            SolverStoppedError: If the pool was closed.
            SolverTimeoutError: If solver processes worked on the batch for longer than they may.
        """
        batch = _Batch()
        run_candidates = functools.partial(self._run_candidates, batch)
        solve = functools.partial(solve_request, request, run_candidates=run_candidates)
        if self._keeper.is_closing.is_set():
            raise SolverStoppedError("the solver pool is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._solves, solve)
        except asyncio.CancelledError:
            with self._keeper.lock:
                batch.is_unwanted = True
                self._stop(batch)
            raise

    def close(self) -> None:
        """End every solver process; batches that still wait fail with ``SolverStoppedError``. Safe to call twice."""
        with self._keeper.lock:
            if self._keeper.is_closing.is_set():
                return
            with contextlib.suppress(queue.Empty):
                while True:
                    task = self._queue.get_nowait()
                    if task is not None:
                        task.future.cancel()
            for _ in self._servers:
                self._queue.put(None)
            self._keeper.begin_close()
        for thread in self._servers:
            thread.join()
        # Not cancelled: batches that did not start fail like the others, for asyncio would blame the caller.
        self._solves.shutdown()
        self._keeper.close()

    def _run_candidates(self, batch: _Batch, requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        """Have candidates of a batch built, and leave none under way."""
        tasks = [_Task(batch, request) for request in requests]
        with self._keeper.lock:
            if batch.is_unwanted:
                raise SolverStoppedError("the batch is no longer wanted")
            batch.tasks = tasks
            for task in tasks:
                if self._keeper.is_closing.is_set():
                    task.future.cancel()
                else:
                    self._queue.put(task)
        try:
            return [task.future.result() for task in tasks]
        except (CancelledError, SolverStoppedError) as error:
            if batch.is_overdue:
                raise SolverTimeoutError(self._max_solve_s) from None
            if isinstance(error, SolverStoppedError):
                raise
            # As it is, asyncio would take it for the caller's own cancellation.
            raise SolverStoppedError("the solver pool was closed before the batch was planned") from None
        finally:
            with self._keeper.lock:
                self._stop(batch)

    def _stop(self, batch: _Batch) -> None:
        """Drop the candidates of a batch; the solver processes that work on one are killed. The lock is held."""
        for task in batch.tasks:
            if not task.future.cancel() and task in self._running:
                number = self._running.index(task)
                self._running[number] = None
                self._keeper.kill(number)

    def _stop_overdue(self) -> None:
        """Stop the batches that solver processes have worked on for too long."""
        with self._keeper.lock:
            for batch in {task.batch for task in self._running if task is not None}:
                if batch.clock.passed_s > self._max_solve_s:
                    batch.is_overdue = True
                    self._stop(batch)

    def _serve(self, number: int) -> None:
        """Feed one actor until the pool closes."""
        while (task := self._next_task(number)) is not None:
            with self._keeper.lock:
                if not task.future.set_running_or_notify_cancel():
                    continue
                self._running[number] = task
                task.batch.clock.begin()
            try:
                result = self._build(number, task)
            except Exception as error:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)

    def _next_task(self, number: int) -> _Task | None:
        """Wait for the actor to start, unless no other can be expected to work, then for a task; None at the end."""
        while not (self._keeper.is_closing.is_set() or self._keeper.is_best(number)):
            self._keeper.is_closing.wait(START_POLL_S)
        return self._queue.get()

    def _build(self, number: int, task: _Task) -> CandidateResult:
        """Build one candidate and leave an actor that can build the next one."""
        try:
            return self._solve_with_retry(number, task)
        finally:
            with self._keeper.lock:
                task.batch.clock.end()
                was_stopped = self._running[number] is not task
                self._running[number] = None
                is_worn = self._keeper.count_built(number) >= CANDIDATES_PER_PROCESS
                if (was_stopped or is_worn) and not self._keeper.is_closing.is_set():
                    stopped = "overdue" if task.batch.is_overdue else "unwanted"
                    self._keeper.replace(number, stopped if was_stopped else "worn")

    def _solve_with_retry(self, number: int, task: _Task) -> CandidateResult:
        """Build a candidate; lost once, by the death of its process or of Ray as a whole, it is built once more."""
        process_losses = ray_losses = 0
        while True:
            ray, actor = self._take_actor(number, task)
            try:
                return ray.solve(actor, task.request)
            except RayLostError as error:
                ray_losses += 1
                self._keeper.lose(ray)
                if ray_losses == 2:
                    raise SolverLostError(
                        f"Ray was lost twice while it built the candidate {task.request.spec.name}: {error}"
                    ) from None
            except ProcessNotStartedError as error:
                # Left as it is: the next batches go to others, or get the fallback at once, until it does start.
                raise SolverLostError(f"solver process {number} was lost, the one in its place is {error}") from None
            except ProcessLostError as error:
                process_losses += 1
                end = f"{self._keeper.describe_peak(number)}; {error}"
                with self._keeper.lock:
                    self._require_wanted(number, task)
                    self._keeper.replace(number, "lost", ray)
                logger.warning("solver process %d was lost, another one takes its place: %s", number, end)
                if process_losses == 2:
                    raise SolverLostError(
                        f"solver process {number} died twice while it built the candidate "
                        f"{task.request.spec.name}: {end}"
                    ) from None

    def _take_actor(self, number: int, task: _Task) -> tuple[RayConnection, Actor]:
        """Return the solver process of a thread, once Ray is there.

        Raises:
            SolverLostError: If Ray did not start again.
            SolverStoppedError: If nobody wants the task any longer.
        """
        with self._keeper.lock:
            self._keeper.wait_until_there()
            self._require_wanted(number, task)
            return self._keeper.process(number)

    def _require_wanted(self, number: int, task: _Task) -> None:
        if self._keeper.is_closing.is_set():
            raise SolverStoppedError("the solver pool was closed while it planned") from None
        if self._running[number] is not task:
            raise SolverStoppedError("the batch is no longer wanted") from None
