"""`infinipipe serve` as a process, and what it leaves behind."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

LINE = re.compile(r"planner listening on (?P<address>127\.0\.0\.1:\d+) \((2 solvers|1 solver|1 solver without Ray)\)\n")
BASIC_OPTIONS = ("--listen", "127.0.0.1:0", "--workers", "2")
START_TIMEOUT_S = 90.0
COMMAND = (sys.executable, "-c", "from infinipipe_planner.cli import main; main()")
RAY_DIRECTORY = re.compile(r"/tmp/infinipipe-ray-[^/\s]+")


class ServiceProcess:
    """The service in a process group of its own, as a terminal would start it.

    Args:
        options: Further options of ``infinipipe serve``; the last of equal ones holds.
        prelude: Python that its process runs first.

    Attributes:
        address: HOST:PORT that it printed.
    """

    def __init__(self, *options: str, prelude: str = "") -> None:
        interpreter, flag, program = COMMAND
        self._process = subprocess.Popen(
            [interpreter, flag, f"{prelude}\n{program}", "serve", *BASIC_OPTIONS, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = ""
        # Read all the while: a service that nobody listens to blocks as soon as the pipe is full.
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """What it has written to standard error so far."""
        return "".join(self._log)

    def wait_ready(self) -> Self:
        """Wait for the line that says where it listens."""
        line = self.wait_line()
        match = LINE.fullmatch(line)
        if match is None:
            self.kill()
            raise AssertionError(f"the service printed {line!r} instead of its address; {self._rest()}")
        self.address = match["address"]
        return self

    def wait_line(self) -> str:
        """Wait for the first line that it prints."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        return self._process.stdout.readline() if readable else ""

    def descendants(self) -> dict[int, str]:
        """Find every process below this one: ids and command lines."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        found: dict[int, str] = {}
        queue = [self._process.pid]
        while queue:
            parent = queue.pop()
            children = [pid for pid, its_parent in parents.items() if its_parent == parent]
            found |= {pid: _command_line(pid) for pid in children}
            queue += children
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the service alone, as a supervisor does."""
        self._process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to the whole process group, as a terminal does."""
        os.killpg(self._process.pid, signal.SIGINT)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit code."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """End it whatever it does; for clean-up after a failed test."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)

    def close(self) -> str:
        """Stop it if it runs; return what it wrote to standard error."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._rest()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._log.extend(lines)

    def _rest(self) -> str:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._reader.join(20)  # the end of the pipe: processes below it may hold it for a moment
        return self.log


def survivors(processes: dict[int, str], timeout_s: float = 10.0) -> dict[int, str]:
    """Wait for processes to be gone; return those that are not."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = {pid: command for pid, command in processes.items() if _command_line(pid) == command}
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.05)


def ray_directories(processes: dict[int, str]) -> set[Path]:
    """Find the temporary directories that the processes of Ray work in."""
    return {Path(match) for command in processes.values() for match in RAY_DIRECTORY.findall(command)}


def _command_line(pid: int) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return "" if state == "Z" else Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
