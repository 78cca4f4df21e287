"""One child process that plans one batch after the other, seen from both sides of its pipe."""

import ctypes
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.errors import SolverLostError, SolverTimeoutError
from infinipipe_planner.process_memory import describe_peak, peak_bytes

Work = Callable[[], ExecutionPlan]

READY_TIMEOUT_S = 60.0
"""How long a process may take to start."""

LOOK_INTERVAL_S = 0.5
"""Seconds between two looks at the memory of a process that plans."""

END_TIMEOUT_S = 5.0
"""How long the system may take to say what a process ended of."""

_PR_SET_PDEATHSIG = 1


class SolverProcess:
    """The process as the service has it; starting does not wait until it is ready.

    It ends with the thread that started it, even one that is killed (Linux).

    Attributes:
        answered_count: Batches that it has answered so far.

    Raises:
        SolverLostError: If the system starts no further process.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        try:
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), name="solver", daemon=True)
            self._process.start()
        except OSError as error:
            raise SolverLostError(f"the solver process did not start: {error}") from None
        theirs.close()  # so that the end of one process is the end of the other's pipe
        self.answered_count = 0
        self._is_ready = False
        self._peak_bytes = 0

    def wait_ready(self) -> None:
        """Wait until it has started.

        Raises:
            SolverLostError: If it takes more than ``READY_TIMEOUT_S``.
            EOFError, OSError: If it died.
        """
        if self._is_ready:
            return
        if not self._pipe.poll(READY_TIMEOUT_S):
            raise SolverLostError(f"the solver process did not start within {READY_TIMEOUT_S:g} s")
        self._pipe.recv()
        self._is_ready = True

    def ask(self, work: Work, limit_s: float) -> ExecutionPlan | Exception:
        """Have one batch planned; an error of the work is returned, never raised.

        Args:
            work: Plans it.
            limit_s: How long it may take.

        Raises:
            SolverTimeoutError: If it takes longer; the process is of no further use.
            SolverLostError: If the process did not start in time.
            EOFError, OSError: If it died.
        """
        self.wait_ready()
        self._pipe.send(work)
        deadline_s = time.monotonic() + limit_s
        while not self._pipe.poll(min(LOOK_INTERVAL_S, max(0.0, deadline_s - time.monotonic()))):
            self._peak_bytes = peak_bytes(self._process.pid or 0) or self._peak_bytes
            if time.monotonic() >= deadline_s:
                raise SolverTimeoutError(limit_s)
        answer = self._pipe.recv()
        self.answered_count += 1
        assert isinstance(answer, (ExecutionPlan, Exception))
        return answer

    def kill(self) -> None:
        """End it at once, whatever it does; does not wait. Safe to call from any thread, also when it is dead."""
        self._process.kill()

    def describe_end(self) -> str:
        """Say what it died of, and how much memory it had."""
        self._process.join(END_TIMEOUT_S)
        code = self._process.exitcode
        if code is None:
            how = "it has not ended yet"
        elif code < 0:
            how = f"ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        return f"{how}, {describe_peak(self._peak_bytes)}"

    def end(self) -> None:
        """End it and wait until it is gone; nobody may ask it meanwhile."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection) -> None:
    """Body of the solver process, until the service is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the service decides
    _die_with_parent()
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


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies: inside SCIP it would not see the end of the pipe.

    A parent that is dead already sends no work, and the end of the pipe is seen.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
