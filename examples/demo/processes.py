"""Processes of the demo: whatever it starts is gone when it ends, however it ends.

Children run in sessions of their own, so that Ctrl-C reaches the demo alone, which then ends them in order. A child
whose parent dies is ended by the kernel; grandchildren that lose their parent become children of the demo, which sweeps
them up.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# The planner closes Ray when it is asked to end, which takes some seconds.
GRACE_S = 15.0
SWEEP_S = 10.0


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """End everything that was started inside the block; Ctrl-C and SIGTERM leave it, while it ends they do nothing."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for ignored in SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in SIGNALS:
        signal.signal(number, leave)
    try:
        yield
    finally:
        with _signals_ignored():
            _sweep()


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], errors: IO[bytes] | int
) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is read as lines, and end it with the block.

    Args:
        command: Program and arguments.
        environment: Variables set besides those of this process.
        errors: Where its standard error goes, as for ``subprocess.Popen``.
    """
    process = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  # the demo has one thread
    )
    try:
        yield process
    finally:
        with _signals_ignored():
            _end(process)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let nothing interrupt the block."""
    handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, and kill it if it does not."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _end_with_parent() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":  # elsewhere the ordinary end of the processes has to do
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _sweep() -> None:
    """Kill what is left below this process until nothing is."""
    deadline_s = time.monotonic() + SWEEP_S
    while (children := _children()) and time.monotonic() < deadline_s:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    """List the children of this process, those that it inherited among them."""
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (name) state ppid ...": the name may hold spaces and parentheses.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                children.append(int(entry.parent.name))
    return children
