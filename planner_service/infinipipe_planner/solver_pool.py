"""Solver processes: the candidates of a batch are built in parallel by Ray actors.

SCIP holds the interpreter while it runs and may die with its process, so it never runs in the service's own. A thread
per actor takes candidates from one queue, first come first served, so batches are planned in the order they came.
"""

import asyncio
import contextlib
import functools
import logging
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, solve_candidate
from infinipipe_planner.solve import solve_plan

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 * 2**20
_START_TIMEOUT_S = 60.0

# Read by Ray when it is imported or started.
_LOCAL_RAY_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on loopback only
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call must not start an instance of Ray's own choice
    "RAY_AUTH_MODE": "disabled",  # no token file in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about a default that matters with GPUs only
}


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class _CandidateSolver:
    """Body of an actor."""

    def solve(self, request: CandidateRequest) -> CandidateResult:
        """Build one candidate."""
        return solve_candidate(request)


class _Ray:
    """A connection to Ray: an instance of its own on loopback, or a cluster that exists.

    Ray is imported here, not with the module, because it reads its environment on import.
    """

    def __init__(self, num_workers: int, address: str | None) -> None:
        if _is_connected():
            raise RuntimeError("this process already has a solver pool; close it before starting another")
        self._directory: Path | None = None
        where: dict[str, Any] = {"address": address}
        if address is None:
            for name, value in _LOCAL_RAY_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            # Short, as it holds Unix sockets.
            self._directory = Path(tempfile.mkdtemp(prefix="infinipipe-ray-", dir="/tmp"))
            where = {
                "address": "local",
                "num_cpus": num_workers,
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(self._directory),
            }
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415

        self._ray = ray
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

    def start_actor(self) -> Any:  # noqa: ANN401  # Ray's handles are untyped
        """Start a solver process; returns its handle at once."""
        return self._ray.remote(num_cpus=1)(_CandidateSolver).remote()

    def wait_ready(self, actors: Sequence[Any]) -> None:
        """Wait until solver processes have started."""
        self._ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=_START_TIMEOUT_S)

    def solve(self, actor: Any, request: CandidateRequest) -> CandidateResult:  # noqa: ANN401
        """Build a candidate in a solver process and wait for it."""
        result: CandidateResult = self._ray.get(actor.solve.remote(request))
        return result

    def kill(self, actor: Any) -> None:  # noqa: ANN401
        """End a solver process, whatever it does."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Disconnect; an instance of its own ends and leaves no file."""
        self._ray.shutdown()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


class SolverPool:
    """A fixed number of solver processes that serve many batches.

    Use ``SolverPool.start`` to make one and ``close`` to end it.
    """

    def __init__(self, ray: _Ray, actors: Sequence[Any]) -> None:
        self._ray = ray
        self._queue: queue.SimpleQueue[tuple[CandidateRequest, Future[CandidateResult]] | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._actors = list(actors)
        self._servers = [
            threading.Thread(target=self._serve, args=(number,), name=f"solver-{number}")
            for number in range(len(actors))
        ]
        for server in self._servers:
            server.start()
        # One more than actors, so that the next batch is queued before an actor runs dry.
        self._solves = ThreadPoolExecutor(len(actors) + 1, thread_name_prefix="solve")

    @classmethod
    def start(cls, num_workers: int, *, ray_address: str | None = None) -> "SolverPool":
        """Start solver processes and wait until they are ready.

        Args:
            num_workers: Solver processes, at least 1.
            ray_address: Ray cluster to use; None starts an instance of its own that only listens on loopback.
        """
        if num_workers < 1:
            raise ValueError(f"the solver pool needs at least 1 worker, {num_workers} were asked for")
        ray = _Ray(num_workers, ray_address)
        try:
            actors = [ray.start_actor() for _ in range(num_workers)]
            ray.wait_ready(actors)
        except BaseException:
            ray.close()
            raise
        return cls(ray, actors)

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
        """Plan one training step on the solver processes; see ``solve_plan``.

        The event loop stays free meanwhile. Cancelling drops the candidates that wait.

        Raises:
            SolverLostError: If a candidate lost its solver process twice, or the pool was closed.
        """
        waiting: list[Future[CandidateResult]] = []

        def run_candidates(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
            futures = [self._enqueue(request) for request in requests]
            waiting.extend(futures)
            try:
                return [future.result() for future in futures]
            except CancelledError:
                # As it is, asyncio would take it for the caller's own cancellation.
                raise SolverLostError("the solver pool was closed before the batch was planned") from None
            finally:
                for future in futures:
                    future.cancel()

        solve = functools.partial(
            solve_plan,
            lengths,
            profile,
            options,
            job=job,
            generation=generation,
            step=step,
            target_token_count=target_token_count,
            run_candidates=run_candidates,
        )
        if self._is_closing.is_set():
            raise SolverLostError("the solver pool is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._solves, solve)
        except asyncio.CancelledError:
            for future in waiting:
                future.cancel()
            raise

    def close(self) -> None:
        """End every solver process; batches that still wait fail with ``SolverLostError``. Safe to call twice."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    item[1].cancel()
        for _ in self._servers:
            self._queue.put(None)
        for actor in self._actors:
            self._ray.kill(actor)
        for server in self._servers:
            server.join()
        self._solves.shutdown(cancel_futures=True)
        self._ray.close()

    def _enqueue(self, request: CandidateRequest) -> Future[CandidateResult]:
        future: Future[CandidateResult] = Future()
        if self._is_closing.is_set():
            future.cancel()
        else:
            self._queue.put((request, future))
        return future

    def _serve(self, number: int) -> None:
        """Feed one actor until the pool closes."""
        while (item := self._queue.get()) is not None:
            request, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = self._solve_with_retry(number, request)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def _solve_with_retry(self, number: int, request: CandidateRequest) -> CandidateResult:
        try:
            return self._ray.solve(self._actors[number], request)
        except self._ray.lost_errors as error:
            self._replace_actor(number, error)
        try:
            return self._ray.solve(self._actors[number], request)
        except self._ray.lost_errors as error:
            self._replace_actor(number, error)
            raise SolverLostError(
                f"solver process {number} died twice while it built the candidate {request.spec.name}"
            ) from None

    def _replace_actor(self, number: int, error: Exception) -> None:
        if self._is_closing.is_set():
            raise SolverLostError("the solver pool was closed while it planned") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        logger.warning("solver process %d was lost, another one takes its place: %s", number, reason)
        self._actors[number] = self._ray.start_actor()
