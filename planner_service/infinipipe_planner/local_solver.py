"""Solving without Ray: one child process that plans one batch after the other.

A process and not a thread, because SCIP holds the interpreter while it runs and may die with its process.

The process may go at any time: lost to a crash, replaced after ``BATCHES_PER_PROCESS`` batches, or killed because
nobody wants any longer what it plans or it takes too long. Another one is started when the next batch comes.
"""

import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.config import MAX_SOLVE_S
from infinipipe_planner.errors import SolverLostError, SolverStoppedError, SolverTimeoutError
from infinipipe_planner.solve import solve_request
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.solver_process import SolverProcess, Work

logger = logging.getLogger(__name__)

BATCHES_PER_PROCESS = 100
"""Batches that a process plans before another takes its place: what a solver forgets to free goes with its process."""


@dataclass(eq=False)
class _Batch:
    """A batch that somebody waits for.

    Attributes:
        work: Plans it, in the process.
        is_unwanted: Whether nobody waits for it any longer.
    """

    work: Work
    is_unwanted: bool = False


class LocalSolver:
    """The solver of ``infinipipe serve --workers 0``; see ``SolverPool`` for the one with Ray.

    Args:
        max_solve_s: Seconds that the process may work on one batch.

    Raises:
        SolverLostError: If the system starts no process.
    """

    def __init__(self, max_solve_s: float) -> None:
        self._max_solve_s = max_solve_s
        self._tell_restart: Callable[[str], None] = lambda _: None
        self._is_closing = threading.Event()
        self._lock = threading.Lock()  # over the next two, and never held while somebody waits for the process
        self._process: SolverProcess | None = SolverProcess()
        self._running: _Batch | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="solve")

    @classmethod
    def start(cls, *, max_solve_s: float = MAX_SOLVE_S) -> "LocalSolver":
        """Start the solver process and wait until it is ready.

        Args:
            max_solve_s: Seconds that the process may work on one batch.

        Raises:
            SolverLostError: If it does not start, or not in time.
        """
        solver = cls(max_solve_s)
        assert solver._process is not None
        try:
            solver._process.wait_ready()
        except (EOFError, OSError):
            solver.close()
            raise SolverLostError("the solver process died while it started") from None
        except BaseException:
            solver.close()
            raise
        return solver

    def on_restart(self, tell: Callable[[str], None]) -> None:
        """Have somebody told, from another thread, why a process is replaced: lost, worn, unwanted, overdue."""
        self._tell_restart = tell

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        """Plan one training step in the solver process; see ``solve_request``.

        Batches are planned in the order they came. Cancelling drops a batch that waits, and kills the process that
        plans it.

        Raises:
            SolverLostError: If the process died twice while it planned, or did not start.
            SolverStoppedError: If the solver was closed.
            SolverTimeoutError: If the process worked on the batch for longer than it may.
        """
        work = functools.partial(solve_request, request)
        if self._is_closing.is_set():
            raise SolverStoppedError("the solver is closed")
        batch = _Batch(work)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._plan, batch)
        except asyncio.CancelledError:
            self._stop(batch)
            raise

    def close(self) -> None:
        """End the solver process; batches that still wait fail with ``SolverStoppedError``. Safe to call twice."""
        with self._lock:
            self._is_closing.set()
            if self._process is not None:
                self._process.kill()
        # Not cancelled: batches that did not start fail like the others, for asyncio would blame the caller.
        self._thread.shutdown()
        self._end_process()

    def _stop(self, batch: _Batch) -> None:
        """Drop a batch that nobody waits for; the process that plans it is killed."""
        with self._lock:
            batch.is_unwanted = True
            if self._running is batch and self._process is not None:
                self._process.kill()

    def _plan(self, batch: _Batch) -> ExecutionPlan:
        """Plan one batch, in the thread, and leave no process that cannot plan the next one."""
        try:
            answer = self._ask_with_retry(batch)
        finally:
            with self._lock:
                was_killed = self._running is batch and batch.is_unwanted
                self._running = None
                process = self._process
            if process is not None and was_killed:
                self._replace_process("unwanted")
            elif process is not None and process.answered_count >= BATCHES_PER_PROCESS:
                self._replace_process("worn")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask_with_retry(self, batch: _Batch) -> ExecutionPlan | Exception:
        """Have a batch planned; lost once, by the death of the process, it is planned once more."""
        end = ""
        for _ in range(2):
            process = self._take_process(batch)
            try:
                return process.ask(batch.work, self._max_solve_s)
            except (EOFError, OSError):
                self._require_wanted(batch)
                end = process.describe_end()
                self._replace_process("lost")
                logger.warning("the solver process was lost (%s), another one takes its place", end)
            except SolverTimeoutError:
                self._replace_process("overdue")
                raise
            except SolverLostError:  # it hangs while it starts; the next one may not
                self._replace_process("lost")
                raise
        raise SolverLostError(f"the solver process died twice while it planned the batch ({end})")

    def _take_process(self, batch: _Batch) -> SolverProcess:
        """Return the process that plans the batch from now on, a new one if there is none."""
        with self._lock:
            self._require_wanted(batch)
            self._running = batch
            if self._process is None:
                self._process = SolverProcess()
            return self._process

    def _require_wanted(self, batch: _Batch) -> None:
        if self._is_closing.is_set():
            raise SolverStoppedError("the solver was closed while it planned") from None
        if batch.is_unwanted:
            raise SolverStoppedError("the batch is no longer wanted") from None

    def _replace_process(self, reason: str) -> None:
        """End the process; the next batch starts another one."""
        self._tell_restart(reason)
        self._end_process()

    def _end_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()
