"""A Ray cluster of the test's own, as somebody else on the machine would have started it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support_e2e.runs import processes_with

# On loopback only, and without what Ray would write to the home folder or send away. Its drivers need the same.
RAY_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}
START_TIMEOUT_S = 100.0


@dataclass(frozen=True)
class RayCluster:
    """A cluster of one node.

    Attributes:
        address: HOST:PORT that drivers connect to.
        folder: Where it keeps its files; part of its processes' command lines.
    """

    address: str
    folder: Path

    def solver_processes(self) -> list[int]:
        """List the solver processes that run on the cluster, whoever asked for them."""
        raylets = {pid for pid in processes_with(f"{self.folder}/") if "/raylet" in command_line(pid).split("\0")[0]}
        return [
            pid
            for pid, parent in parents().items()
            if parent in raylets and command_line(pid).startswith("ray::_CandidateSolver")
        ]

    def is_up(self) -> bool:
        """Tell whether it still takes connections."""
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 5).close()
            return True
        return False


@contextlib.contextmanager
def ray_cluster(num_cpus: int) -> Iterator[RayCluster]:
    """Start a cluster on free ports of loopback, and end it whatever happens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: it holds Unix sockets
    cluster = RayCluster(f"127.0.0.1:{port}", folder)
    options = {
        "port": port,
        "node-ip-address": "127.0.0.1",
        "num-cpus": num_cpus,
        "object-store-memory": 80 * 2**20,
        "include-dashboard": "false",
        "temp-dir": folder,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "dashboard-agent-listen-port": 0,
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head"]
    command += [f"--{name}={value}" for name, value in options.items()]
    try:
        # Into a file: the cluster's processes would keep a pipe open for ever.
        with (folder / "start.log").open("w") as log:
            done = subprocess.run(
                command,
                env=os.environ | RAY_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=START_TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, (folder / "start.log").read_text()
        yield cluster
    finally:
        named = processes_with(f"{folder}/")
        for pid in [*named, *(pid for pid, parent in parents().items() if parent in named)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def command_line(pid: int) -> str:
    """Read the command line of a process; empty when there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def parents() -> dict[int, int]:
    """Map every process to its parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found
