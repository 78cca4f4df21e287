"""A connection to Ray: an instance of its own on loopback, or a cluster that exists.

Ray as a whole can be lost as well as a single process of it, and then says nothing for a minute, after which it ends
the process that holds the connection. So somebody has to look: ``is_alive`` asks the system, never Ray.
"""

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from infinipipe_contract.errors import first_line
from infinipipe_planner.config import parse_address
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, solve_candidate
from infinipipe_planner.process_memory import peak_bytes
from infinipipe_planner.ray_directory import RayDirectory, sweep_directories

logger = logging.getLogger(__name__)

_RAY_PARENT = Path("/tmp")
_OBJECT_STORE_BYTES = 100 * 2**20
# Of each of Ray's own log files, which lie in the instance's folder and go with it; Ray itself would keep 6 x 100 MiB.
_RAY_LOG_BYTES = 2**20
START_TIMEOUT_S = 60.0
"""Seconds for a solver process to start; one without a core of the cluster may still start later."""

# Read by Ray when it is imported or started.
_LOCAL_RAY_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on loopback only
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call must not start an instance of Ray's own choice
    "RAY_AUTH_MODE": "token",  # who asks this instance for work runs as its user, so other users must not
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ROTATION_MAX_BYTES": str(_RAY_LOG_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about a default that matters with GPUs only
}


ESSENTIAL_PROCESSES = frozenset({"gcs_server", "raylet"})
_EXIT = re.compile(r"Worker exit type: (\S+) Worker exit detail: ([^.\n]+)")
_PROBE_TIMEOUT_S = 2.0
_PROBE_ATTEMPTS = 3
ANSWER_TIMEOUT_S = 10.0
"""Seconds for a cluster to answer as gRPC does; Ray itself waits for ever."""


class RayLostError(Exception):
    """Ray as a whole is gone; the message is what it said."""


class NoRayClusterError(Exception):
    """Nobody answers at the address of the cluster; the message names it."""


class ProcessLostError(Exception):
    """A solver process is gone, or Ray lost what it answered; the message is what Ray said."""


class ProcessNotStartedError(Exception):
    """A solver process has not started in its time; it may yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Actor:
    """A solver process, from the moment it is asked for.

    Attributes:
        handle: Ray's, untyped.
        ready: Reference that Ray resolves to the process id when the process has started, or cannot.
        deadline_s: When it should have started, on the monotonic clock.
    """

    handle: Any
    ready: Any
    deadline_s: float


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _CandidateSolver:
    """Body of an actor."""

    def solve(self, request: CandidateRequest) -> CandidateResult:
        """Build one candidate."""
        return solve_candidate(request)

    def process_id(self) -> int:
        """Tell that the process has started, and which it is."""
        return os.getpid()


class RayConnection:
    """A connection to Ray.

    Ray is imported here, not with the module, because it reads its environment on import.

    Args:
        num_workers: Solver processes that will be started.
        address: HOST:PORT of a cluster; None starts an instance of its own that only listens on loopback.

    Raises:
        NoRayClusterError: If nobody answers at the address.
        Exception: Whatever Ray met while it started.
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
            # In the environment, which other users cannot read; Ray would write a file into the home folder. One for
            # the life of this process: Ray reads it once.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
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
        else:
            _require_cluster(address)
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415

        self._ray = ray
        # One class for all actors: every class that Ray is shown stays in its tables.
        self._solver_class = ray.remote(num_cpus=1)(_CandidateSolver)
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
            return _probe(self._address) is None
        # The only record of which processes are Ray's own; without it the instance counts as there.
        node = getattr(sys.modules.get("ray._private.worker"), "_global_node", None)
        dead = {kind for kind, _ in node.dead_processes()} if node is not None else set()
        return not dead & ESSENTIAL_PROCESSES

    def start_actor(self) -> Actor:
        """Ask for a solver process; returns at once."""
        handle: Any = self._solver_class.remote()
        return Actor(handle, handle.process_id.remote(), time.monotonic() + START_TIMEOUT_S)

    def is_started(self, actor: Actor) -> bool:
        """Tell whether a solver process has started, or died since; a cluster without a free core keeps it waiting."""
        try:
            return bool(self._ray.wait([actor.ready], timeout=0)[0])
        except (Exception, SystemExit):  # disconnected meanwhile: whoever uses the actor learns it
            return False

    def is_expected(self, actor: Actor) -> bool:
        """Tell whether a solver process has started or still has time to."""
        return time.monotonic() < actor.deadline_s or self.is_started(actor)

    def peak_bytes(self, actor: Actor) -> int:
        """Return the largest memory of a solver process so far; 0 where it is not known, as on another machine."""
        if self._address is not None or not self.is_started(actor):
            return 0
        try:
            return peak_bytes(self._ray.get(actor.ready))
        except (Exception, SystemExit):  # it did not start, or Ray was lost meanwhile: whoever uses it learns that
            return 0

    def wait_started(self, actors: Sequence[Actor]) -> None:
        """Wait until solver processes have started.

        Raises:
            ProcessNotStartedError: If one has not in its time.
        """
        for actor in actors:
            try:
                self._ray.get(actor.ready, timeout=max(0.0, actor.deadline_s - time.monotonic()))
            except self._ray.exceptions.GetTimeoutError:
                hint = "" if self._address is None else f"; has the Ray cluster at {self._address} a free core for it?"
                raise ProcessNotStartedError(f"not started within {START_TIMEOUT_S:g} s{hint}") from None

    def solve(self, actor: Actor, request: CandidateRequest) -> CandidateResult:
        """Build a candidate in a solver process and wait for it.

        Raises:
            RayLostError: If Ray is gone, or was disconnected meanwhile.
            ProcessLostError: If the solver process is gone.
            ProcessNotStartedError: If the solver process has not started in its time.
            Exception: What the candidate raised.
        """
        try:
            self.wait_started([actor])
            result: CandidateResult = self._ray.get(actor.handle.solve.remote(request))
        except ProcessNotStartedError:
            raise
        except SystemExit:  # how Ray ends the threads that wait for it when it is shut down
            raise RayLostError("Ray was shut down") from None
        except Exception as error:
            if not self.is_alive():
                raise RayLostError(first_line(error)) from error
            if is_loss(error):
                raise ProcessLostError(_describe_loss(error)) from error
            raise
        return result

    def kill(self, actor: Actor) -> None:
        """End a solver process, whatever it does; nothing to do where Ray is gone."""
        if self._address is not None or self.is_alive():  # no probe over the network for this
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):  # of another connection
                self._ray.kill(actor.handle)

    def close(self) -> None:
        """Disconnect; an instance of its own ends and leaves no file."""
        try:
            self._ray.shutdown()
        finally:
            if self._directory is not None:
                self._directory.remove()


def is_loss(error: BaseException) -> bool:
    """Tell whether an error of Ray's says that a solver process or its answer is gone.

    So does every one but that which carries what the candidate itself raised: a fault of Ray's costs an attempt, and in
    the end the plan of a solver, but never the run.
    """
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    return isinstance(error, RayError) and not isinstance(error, RayTaskError)


def _require_cluster(address: str) -> None:
    """Make sure that somebody answers at the address before Ray is asked, which would try for minutes or for ever.

    Raises:
        NoRayClusterError: If nobody does.
    """
    error = _probe(address)
    if error is not None:
        raise NoRayClusterError(f"no Ray cluster at {address}: {error.strerror or error}")
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):  # its certificates are Ray's own business
        return
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise NoRayClusterError(
                f"no Ray cluster at {address}: it accepts connections, and does not answer as Ray within "
                f"{ANSWER_TIMEOUT_S:g} s"
            ) from None


def _probe(address: str) -> OSError | None:
    """Try to connect; returns why not. One lost packet is not taken for the end."""
    failure: OSError | None = None
    for _ in range(_PROBE_ATTEMPTS):
        try:
            socket.create_connection(parse_address(address), _PROBE_TIMEOUT_S).close()
        except OSError as error:
            failure = error
        else:
            return None
    return failure


def _describe_loss(error: BaseException) -> str:
    """Say what Ray says, with how the process ended where it tells."""
    end = _EXIT.search(str(error))
    return first_line(error).rstrip(".") + (f" ({end[1]}: {end[2]})" if end else "")
