"""Solving without Ray: one child process that plans one batch after the other.

A process and not a thread, because SCIP holds the interpreter while it runs and may die with its process.
"""

import asyncio
import functools
import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import SolverLostError, SolverStoppedError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

Work = Callable[[], ExecutionPlan]

_READY_TIMEOUT_S = 60.0


class LocalSolver:
    """The solver of ``infinipipe serve --workers 0``; see ``SolverPool`` for the one with Ray."""

    def __init__(self) -> None:
        self._tell_restart: Callable[[str], None] = lambda _: None
        self._is_closing = threading.Event()
        self._lock = threading.Lock()
        self._process, self._pipe = _start_process()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="solve")

    @classmethod
    def start(cls) -> "LocalSolver":
        """Start the solver process and wait until it is ready."""
        solver = cls()
        if not solver._pipe.poll(_READY_TIMEOUT_S):
            solver.close()
            raise SolverLostError(f"the solver process did not start within {_READY_TIMEOUT_S:g} s")
        return solver

    def on_restart(self, tell: Callable[[str], None]) -> None:
        """Have somebody told, from another thread, when the process died and another one takes its place ("lost")."""
        self._tell_restart = tell

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
        """Plan one training step in the solver process; see ``solve_plan``.

        Raises:
            SolverLostError: If the process died twice while it planned.
            SolverStoppedError: If the solver was closed.
        """
        work = functools.partial(
            solve_plan,
            lengths,
            profile,
            options,
            job=job,
            generation=generation,
            step=step,
            target_token_count=target_token_count,
        )
        if self._is_closing.is_set():
            raise SolverStoppedError("the solver is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._solve, work)

    def close(self) -> None:
        """End the solver process; what it solves fails with ``SolverStoppedError``. Safe to call twice."""
        with self._lock:
            self._is_closing.set()
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._process.join()
        self._pipe.close()

    def _solve(self, work: Work) -> ExecutionPlan:
        for _ in range(2):
            try:
                return self._ask(work)
            except (EOFError, OSError):
                self._replace_process()
        raise SolverLostError("the solver process died twice while it planned the batch")

    def _ask(self, work: Work) -> ExecutionPlan:
        while self._pipe.poll():  # the greeting of a process that has just started
            self._pipe.recv()
        self._pipe.send(work)
        answer = self._pipe.recv()
        while answer is None:
            answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, ExecutionPlan)
        return answer

    def _replace_process(self) -> None:
        with self._lock:
            if self._is_closing.is_set():
                raise SolverStoppedError("the solver was closed while it planned") from None
            self._tell_restart("lost")
            self._process.join()
            self._pipe.close()
            self._process, self._pipe = _start_process()


def _start_process() -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="solver", daemon=True)
    process.start()
    theirs.close()  # so that the end of one process is the end of the other's pipe
    return process, mine


def _serve(pipe: Connection) -> None:
    """Body of the solver process, until the service is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the service decides
    try:
        pipe.send(None)
        while True:
            work = pipe.recv()
            try:
                answer: ExecutionPlan | Exception = work()
            except Exception as error:  # an answer like any other: the service knows what to tell about it
                answer = error
            pipe.send(answer)
    except (EOFError, OSError):
        return
