"""Ranks as plain processes without torchrun, to be watched and sent signals while they run."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support_e2e.runs import TESTS, kill_all


class LiveRun:
    """A run that is under way; rank ``i`` is ``processes[i]``."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes
        self.output = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._readers = [threading.Thread(target=self._read, args=(process,), daemon=True) for process in processes]
        for reader in self._readers:
            reader.start()

    def wait_for(self, text: str, timeout_s: float = 100.0) -> None:
        """Wait until a line holds the text."""
        end_s = time.monotonic() + timeout_s
        while text not in self.output:
            try:
                self.output += self._lines.get(timeout=max(0.01, end_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} within {timeout_s} s:\n{self.output}") from None

    def tell(self, *ranks: int) -> None:
        """Send SIGTERM to ranks."""
        for rank in ranks:
            self.processes[rank].send_signal(signal.SIGTERM)

    def end(self, timeout_s: float = 100.0) -> list[int]:
        """Wait for the end of all ranks and return their exit codes."""
        end_s = time.monotonic() + timeout_s
        try:
            codes = [process.wait(max(0.01, end_s - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the ranks did not end within {timeout_s} s:\n{self.output}{self._rest()}") from None
        self.output += self._rest()
        return codes

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def _rest(self) -> str:
        for reader in self._readers:
            reader.join(10)
        return "".join(self._lines.get() for _ in range(self._lines.qsize()))

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(line)
        process.stdout.close()


@contextmanager
def live_ranks(
    config: Path, planner: str, *, ranks: int, module: tuple[str, ...] = ("infinipipe_executor",)
) -> Iterator[LiveRun]:
    """Start ranks; whatever is left of them is killed.

    Args:
        config: Configuration of the run.
        planner: Address of the planner.
        ranks: Ranks to start.
        module: Module that they run, and arguments in front of the ordinary ones.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", *module, "--config", str(config), "--planner", planner]
    shared = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")} | {
        "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    processes = [
        subprocess.Popen(
            command,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    run = LiveRun(processes)
    try:
        yield run
    finally:
        run.kill()
        kill_all(str(config))
