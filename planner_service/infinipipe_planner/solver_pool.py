"""Solver processes: the candidates of a batch are built in parallel by Ray actors.

SCIP holds the interpreter while it runs and may die with its process, so it never runs in the service's own. A thread
per actor takes candidates from one queue, first come first served, so batches are planned in the order they came.

A solver process may go at any time: lost to a crash, replaced after ``CANDIDATES_PER_PROCESS`` candidates, or killed
because nobody wants any longer what it builds or its batch takes too long: SCIP cannot be interrupted, its process can.
Ray itself may go with all of them: a thread watches it and starts it again, and candidates that were under way are
built once more.
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
from infinipipe_planner.process_memory import describe_peak
from infinipipe_planner.ray_connection import (
    Actor,
    ProcessLostError,
    ProcessNotStartedError,
    RayConnection,
    RayLostError,
)
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.work_clock import WorkClock

logger = logging.getLogger(__name__)

CANDIDATES_PER_PROCESS = 1_000
"""Candidates that a solver process builds before another takes its place: what a solver forgets to free goes with its
process. With a batch of eight candidates every ten seconds and two workers that is once in 40 minutes."""

WATCH_INTERVAL_S = 0.5
"""Seconds between two looks at whether Ray is there, and at whether a batch takes too long."""

START_POLL_S = 0.1
"""Seconds between two looks at whether a solver process has started."""

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Pauses between attempts to start Ray again double from the first to the largest."""


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

    def __init__(
        self, ray: RayConnection, actors: Sequence[Actor], ray_address: str | None, max_solve_s: float
    ) -> None:
        self._ray = ray
        self._max_solve_s = max_solve_s
        self._ray_address = ray_address
        self._is_there = True
        # What was told last: whether Ray is there, and a solver process that works or still has time to start.
        self._is_available = True
        # Set from a start of Ray that failed to the next one that does not: nobody waits for one meanwhile.
        self._is_given_up = False
        self._tell_availability: Callable[[bool], None] = lambda _: None
        self._tell_restart: Callable[[str], None] = lambda _: None
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._actors = list(actors)
        self._built_counts = [0] * len(actors)
        self._peak_bytes = [0] * len(actors)
        # What every actor works on; who takes a task out of here decides how it ends.
        self._running: list[_Task | None] = [None] * len(actors)
        # Held to change what is running, to replace or kill an actor, and to close: nothing starts behind a close.
        self._lock = threading.Lock()
        self._ray_changed = threading.Condition(self._lock)
        self._watcher = threading.Thread(target=self._watch, name="ray-watcher")
        self._servers = [
            threading.Thread(target=self._serve, args=(number,), name=f"solver-{number}")
            for number in range(len(actors))
        ]
        for thread in (self._watcher, *self._servers):
            thread.start()
        # One more than actors, so that the next batch is queued before an actor runs dry.
        self._solves = ThreadPoolExecutor(len(actors) + 1, thread_name_prefix="solve")

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
        return cls(*_start_ray(num_workers, ray_address), ray_address, max_solve_s)

    def on_availability(self, tell: Callable[[bool], None]) -> None:
        """Have somebody told, from another thread, when the solvers are gone and when they are back."""
        self._tell_availability = tell

    def on_restart(self, tell: Callable[[str], None]) -> None:
        """Have somebody told, from another thread, why a process is replaced: lost, worn, unwanted, overdue; or ray."""
        self._tell_restart = tell

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
        if self._is_closing.is_set():
            raise SolverStoppedError("the solver pool is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._solves, solve)
        except asyncio.CancelledError:
            with self._lock:
                batch.is_unwanted = True
                self._stop(batch)
            raise

    def close(self) -> None:
        """End every solver process; batches that still wait fail with ``SolverStoppedError``. Safe to call twice."""
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
            self._ray_changed.notify_all()
        for thread in (self._watcher, *self._servers):
            thread.join()
        # Not cancelled: batches that did not start fail like the others, for asyncio would blame the caller.
        self._solves.shutdown()
        self._ray.close()

    def _run_candidates(self, batch: _Batch, requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        """Have candidates of a batch built, and leave none under way."""
        tasks = [_Task(batch, request) for request in requests]
        with self._lock:
            if batch.is_unwanted:
                raise SolverStoppedError("the batch is no longer wanted")
            batch.tasks = tasks
            for task in tasks:
                if self._is_closing.is_set():
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
            with self._lock:
                self._stop(batch)

    def _stop(self, batch: _Batch) -> None:
        """Drop the candidates of a batch; the solver processes that work on one are killed. The lock is held."""
        for task in batch.tasks:
            if not task.future.cancel() and task in self._running:
                number = self._running.index(task)
                self._running[number] = None
                self._ray.kill(self._actors[number])

    def _stop_overdue(self) -> None:
        """Stop the batches that solver processes have worked on for too long."""
        with self._lock:
            for batch in {task.batch for task in self._running if task is not None}:
                if batch.clock.passed_s > self._max_solve_s:
                    batch.is_overdue = True
                    self._stop(batch)

    def _serve(self, number: int) -> None:
        """Feed one actor until the pool closes."""
        while (task := self._next_task(number)) is not None:
            with self._lock:
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
        while not self._is_closing.is_set():
            with self._lock:
                ray, mine = self._ray, self._actors[number]
                others = [actor for actor in self._actors if actor is not mine]
            if ray.is_started(mine) or not any(ray.is_expected(other) for other in others):
                break
            self._is_closing.wait(START_POLL_S)
        return self._queue.get()

    def _build(self, number: int, task: _Task) -> CandidateResult:
        """Build one candidate and leave an actor that can build the next one."""
        try:
            return self._solve_with_retry(number, task)
        finally:
            self._built_counts[number] += 1
            with self._lock:
                task.batch.clock.end()
                was_stopped = self._running[number] is not task
                self._running[number] = None
                is_worn = self._built_counts[number] >= CANDIDATES_PER_PROCESS
                if (was_stopped or is_worn) and self._is_there and not self._is_closing.is_set():
                    stopped = "overdue" if task.batch.is_overdue else "unwanted"
                    self._replace_actor(number, stopped if was_stopped else "worn")

    def _solve_with_retry(self, number: int, task: _Task) -> CandidateResult:
        """Build a candidate; lost once, by the death of its process or of Ray as a whole, it is built once more."""
        process_losses = ray_losses = 0
        while True:
            ray, actor = self._take_actor(number, task)
            try:
                return ray.solve(actor, task.request)
            except RayLostError as error:
                ray_losses += 1
                with self._lock:
                    if self._ray is ray:  # else another one is there already
                        self._is_there = False
                if ray_losses == 2:
                    raise SolverLostError(
                        f"Ray was lost twice while it built the candidate {task.request.spec.name}: {error}"
                    ) from None
            except ProcessNotStartedError as error:
                # Left as it is: the next batches go to others, or get the fallback at once, until it does start.
                raise SolverLostError(f"solver process {number} was lost, the one in its place is {error}") from None
            except ProcessLostError as error:
                process_losses += 1
                end = f"{describe_peak(self._peak_bytes[number])}; {error}"
                with self._lock:
                    self._require_wanted(number, task)
                    if self._ray is ray and self._is_there:
                        self._replace_actor(number, "lost")
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
        with self._lock:
            while not self._is_there and not self._is_given_up and not self._is_closing.is_set():
                self._ray_changed.wait()
            self._require_wanted(number, task)
            if not self._is_there:
                raise SolverLostError("Ray was lost and did not start again")
            return self._ray, self._actors[number]

    def _require_wanted(self, number: int, task: _Task) -> None:
        if self._is_closing.is_set():
            raise SolverStoppedError("the solver pool was closed while it planned") from None
        if self._running[number] is not task:
            raise SolverStoppedError("the batch is no longer wanted") from None

    def _replace_actor(self, number: int, reason: str) -> None:
        self._tell_restart(reason)
        self._ray.kill(self._actors[number])
        self._actors[number] = self._ray.start_actor()
        self._built_counts[number] = self._peak_bytes[number] = 0

    def _watch(self) -> None:
        """Look after Ray, and after batches that take too long, until the pool closes."""
        while not self._is_closing.wait(WATCH_INTERVAL_S):
            self._stop_overdue()
            if self._is_there and self._looks_alive():
                self._look_at_memory()
                self._set_available(any(map(self._ray.is_expected, list(self._actors))))
                continue
            self._is_there = False
            logger.error("Ray was lost with all solver processes; it is started again")
            self._set_available(False)
            self._tell_restart("ray")
            self._close_lost()  # frees who waits in it, and before anything else: it may hold the lock
            self._start_again()

    def _looks_alive(self) -> bool:
        try:
            return self._ray.is_alive()
        except Exception:  # the watcher is the only one who starts Ray again: it must not end
            logger.exception("cannot tell whether Ray is there")
            return False

    def _close_lost(self) -> None:
        try:
            self._ray.close()
        except (Exception, SystemExit):
            logger.exception("what is left of Ray did not close")

    def _start_again(self) -> None:
        """Start Ray until it is there or the pool closes."""
        pause_s = FIRST_PAUSE_S
        while not self._is_closing.is_set():
            try:
                ray, actors = _start_ray(len(self._actors), self._ray_address)
            except (Exception, SystemExit) as error:
                logger.error("Ray did not start again, next attempt in %g s: %s", pause_s, error)
                with self._lock:
                    self._is_given_up = True
                    self._ray_changed.notify_all()
                self._is_closing.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            with self._lock:
                self._ray, self._actors = ray, actors
                self._built_counts = [0] * len(actors)
                self._peak_bytes = [0] * len(actors)
                self._is_there, self._is_given_up = True, False
                self._ray_changed.notify_all()
            logger.info("Ray is there again")
            self._set_available(True)
            return

    def _look_at_memory(self) -> None:
        """Note how much memory the solver processes have had: of one that is lost, nobody can tell any more."""
        for number, actor in enumerate(list(self._actors)):
            self._peak_bytes[number] = self._ray.peak_bytes(actor) or self._peak_bytes[number]

    def _set_available(self, is_available: bool) -> None:
        """Tell whether there is a solver, when that has changed."""
        if is_available != self._is_available:
            self._is_available = is_available
            self._tell_availability(is_available)


def _start_ray(num_workers: int, address: str | None) -> tuple[RayConnection, list[Actor]]:
    """Start or join Ray, and solver processes that are ready."""
    ray = RayConnection(num_workers, address)
    try:
        actors = [ray.start_actor() for _ in range(num_workers)]
        ray.wait_started(actors)
    except BaseException:
        ray.close()
        raise
    return ray, actors
