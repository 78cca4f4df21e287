"""A connection to Ray: an instance of its own on loopback, or a cluster that exists.

Ray as a whole can be lost as well as a single process of it, and then says nothing for a minute, after which it ends
the process that holds the connection. So somebody has to look: ``is_alive`` asks the system, never Ray.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, solve_candidate
from infinipipe_planner.ray_directory import RayDirectory, sweep_directories

logger = logging.getLogger(__name__)

_RAY_PARENT = Path("/tmp")
_OBJECT_STORE_BYTES = 100 * 2**20
# Of each of Ray's own log files, which lie in the instance's folder and go with it; Ray itself would keep 6 x 100 MiB.
_RAY_LOG_BYTES = 2**20
_START_TIMEOUT_S = 60.0

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


ESSENTIAL_PROCESSES = frozenset({"gcs_server", "raylet"})
_PROBE_TIMEOUT_S = 2.0
_PROBE_ATTEMPTS = 3


class RayLostError(Exception):
    """Ray as a whole is gone; the message is what it said."""


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _CandidateSolver:
    """Body of an actor."""

    def solve(self, request: CandidateRequest) -> CandidateResult:
        """Build one candidate."""
        return solve_candidate(request)


class RayConnection:
    """A connection to Ray.

    Ray is imported here, not with the module, because it reads its environment on import.

    Args:
        num_workers: Solver processes that will be started.
        address: HOST:PORT of a cluster; None starts an instance of its own that only listens on loopback.
    """

    def __init__(self, num_workers: int, address: str | None) -> None:
        if _is_connected():
            raise RuntimeError("this process already has a solver pool; close it before starting another")
        self._directory: RayDirectory | None = None
        self._address = address
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

    def is_alive(self) -> bool:
        """Tell whether Ray is there: its processes live, or its cluster accepts connections."""
        if self._address is not None:
            return _listens(self._address)
        # The only record of which processes are Ray's own; without it the instance counts as there.
        node = getattr(sys.modules.get("ray._private.worker"), "_global_node", None)
        dead = {kind for kind, _ in node.dead_processes()} if node is not None else set()
        return not dead & ESSENTIAL_PROCESSES

    def start_actor(self) -> Any:  # noqa: ANN401  # Ray's handles are untyped
        """Start a solver process; returns its handle at once."""
        return self._solver_class.remote()

    def wait_ready(self, actors: Sequence[Any]) -> None:
        """Wait until solver processes have started."""
        self._ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=_START_TIMEOUT_S)

    def solve(self, actor: Any, request: CandidateRequest) -> CandidateResult:  # noqa: ANN401
        """Build a candidate in a solver process and wait for it.

        Raises:
            RayLostError: If Ray is gone, or was disconnected meanwhile.
            Exception: One of ``lost_errors`` if the solver process is gone; what the candidate raised.
        """
        try:
            result: CandidateResult = self._ray.get(actor.solve.remote(request))
        except SystemExit:  # how Ray ends the threads that wait for it when it is shut down
            raise RayLostError("Ray was shut down") from None
        except Exception as error:
            if self.is_alive():
                raise
            raise RayLostError(_first_line(error)) from error
        return result

    def kill(self, actor: Any) -> None:  # noqa: ANN401
        """End a solver process, whatever it does; nothing to do where Ray is gone."""
        if self._address is not None or self.is_alive():  # no probe over the network for this
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):  # of another connection
                self._ray.kill(actor)

    def close(self) -> None:
        """Disconnect; an instance of its own ends and leaves no file."""
        self._ray.shutdown()
        if self._directory is not None:
            self._directory.remove()


def _listens(address: str) -> bool:
    """Tell whether somebody accepts connections; one lost packet is not taken for the end."""
    host, _, port = address.rpartition(":")
    for _ in range(_PROBE_ATTEMPTS):
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _PROBE_TIMEOUT_S):
            return True
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
