"""Ray and the solver processes on it, kept there: a thread watches them and starts Ray again when all of it is lost.

Single processes are replaced by whoever finds them lost, worn or in need of being killed.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.process_memory import describe_peak
from infinipipe_planner.ray_connection import Actor, RayConnection

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5
"""Seconds between two looks at whether Ray is there."""

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Pauses between attempts to start Ray again double from the first to the largest."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A solver process.

    Attributes:
        actor: Ray's side of it.
        built_count: Candidates that it has built.
        peak_bytes: Largest memory that it was seen with; 0 before.
    """

    actor: Actor
    built_count: int = 0
    peak_bytes: int = 0


class RayKeeper:
    """A connection to Ray with a fixed number of solver processes, whatever is lost.

    Use ``RayKeeper.start`` to make one, ``watch`` to have it looked after and ``close`` to end it.

    Attributes:
        lock: Held to replace or kill a process, and by whoever must not be overtaken by that.
        worker_count: Solver processes; they are known by their number from 0.
        is_closing: Set when all of it ends: nothing starts after that.
    """

    def __init__(self, ray: RayConnection, actors: Sequence[Actor], address: str | None) -> None:
        self.lock = threading.Lock()
        self.worker_count = len(actors)
        self.is_closing = threading.Event()
        self._changed = threading.Condition(self.lock)
        self._address = address
        self._ray = ray
        self._workers = [_Worker(actor) for actor in actors]
        self._is_there = True
        # Set from a start of Ray that failed to the next one that does not: nobody waits for one meanwhile.
        self._is_given_up = False
        # What was told last: whether Ray is there, and a solver process that works or still has time to start.
        self._is_available = True
        self._tell_availability: Callable[[bool], None] = lambda _: None
        self._tell_restart: Callable[[str], None] = lambda _: None
        self._watcher: threading.Thread | None = None

    @classmethod
    def start(cls, num_workers: int, address: str | None) -> "RayKeeper":
        """Start or join Ray, and solver processes that are ready."""
        return cls(*_start_ray(num_workers, address), address)

    def watch(self, look: Callable[[], None]) -> None:
        """Look after Ray from now on, in a thread; ``look`` is called every time, for what its caller looks after."""
        self._watcher = threading.Thread(target=self._watch, args=(look,), name="ray-watcher")
        self._watcher.start()

    def on_availability(self, tell: Callable[[bool], None]) -> None:
        """Have somebody told, from another thread, when the solvers are gone and when they are back."""
        self._tell_availability = tell

    def on_restart(self, tell: Callable[[str], None]) -> None:
        """Have somebody told, from another thread, why a process is replaced; ``ray`` stands for all of them."""
        self._tell_restart = tell

    def is_best(self, number: int) -> bool:
        """Tell whether a process has started, or no other one can be expected to work, either."""
        with self.lock:
            ray, mine = self._ray, self._workers[number]
            others = [worker.actor for worker in self._workers if worker is not mine]
        return ray.is_started(mine.actor) or not any(map(ray.is_expected, others))

    def wait_until_there(self) -> None:
        """Wait until Ray is there, does not start, or all of it ends. The lock is held, and let go meanwhile."""
        while not self._is_there and not self._is_given_up and not self.is_closing.is_set():
            self._changed.wait()

    def process(self, number: int) -> tuple[RayConnection, Actor]:
        """Return a process as it is now. The lock is held.

        Raises:
            SolverLostError: If Ray did not start again.
        """
        if not self._is_there:
            raise SolverLostError("Ray was lost and did not start again")
        return self._ray, self._workers[number].actor

    def lose(self, ray: RayConnection) -> None:
        """Take Ray for lost, unless another connection has taken its place."""
        with self.lock:
            if self._ray is ray:
                self._is_there = False

    def replace(self, number: int, reason: str, ray: RayConnection | None = None) -> None:
        """Put a new process in the place of one, where Ray is there and, if given, still the same. The lock is held."""
        if self._is_there and ray in (None, self._ray):
            self._tell_restart(reason)
            self._ray.kill(self._workers[number].actor)
            self._workers[number] = _Worker(self._ray.start_actor())

    def kill(self, number: int) -> None:
        """End a process, whatever it does. The lock is held."""
        self._ray.kill(self._workers[number].actor)

    def count_built(self, number: int) -> int:
        """Count a candidate that a process has built; returns how many it has."""
        worker = self._workers[number]
        worker.built_count += 1
        return worker.built_count

    def peak_bytes(self, number: int) -> int:
        """Return the largest memory that a process was seen with; 0 where that is not known."""
        return self._workers[number].peak_bytes

    def describe_peak(self, number: int) -> str:
        """Say how much memory a process had, which is gone."""
        return describe_peak(self.peak_bytes(number))

    def begin_close(self) -> None:
        """End every process and wake who waits for Ray. The lock is held."""
        self.is_closing.set()
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._changed.notify_all()

    def close(self) -> None:
        """End the watching, then Ray."""
        if self._watcher is not None:
            self._watcher.join()
        self._ray.close()

    def _watch(self, look: Callable[[], None]) -> None:
        while not self.is_closing.wait(WATCH_INTERVAL_S):
            look()
            if self._is_there and self._looks_alive():
                workers = list(self._workers)
                for worker in workers:
                    worker.peak_bytes = self._ray.peak_bytes(worker.actor) or worker.peak_bytes
                self._set_available(any(self._ray.is_expected(worker.actor) for worker in workers))
                continue
            self._is_there = False
            logger.error("Ray was lost with all solver processes; it is started again")
            self._set_available(False)
            self._tell_restart("ray")
            self._close_lost()  # frees who waits in it, and before anything else: it may hold the lock
            self._start_again()

    def _looks_alive(self) -> bool:
        try:
            return self._ray.is_alive()
        except Exception:  # the watcher is the only one who starts Ray again: it must not end
            logger.exception("cannot tell whether Ray is there")
            return False

    def _set_available(self, is_available: bool) -> None:
        """Tell whether there is a solver, when that has changed."""
        if is_available != self._is_available:
            self._is_available = is_available
            self._tell_availability(is_available)

    def _close_lost(self) -> None:
        try:
            self._ray.close()
        except (Exception, SystemExit):
            logger.exception("what is left of Ray did not close")

    def _start_again(self) -> None:
        """Start Ray until it is there or all of it ends."""
        pause_s = FIRST_PAUSE_S
        while not self.is_closing.is_set():
            try:
                ray, actors = _start_ray(self.worker_count, self._address)
            except (Exception, SystemExit) as error:
                logger.error("Ray did not start again, next attempt in %g s: %s", pause_s, error)
                with self.lock:
                    self._is_given_up = True
                    self._changed.notify_all()
                self.is_closing.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            with self.lock:
                self._ray = ray
                self._workers = [_Worker(actor) for actor in actors]
                self._is_there, self._is_given_up = True, False
                self._changed.notify_all()
            logger.info("Ray is there again")
            self._set_available(True)
            return


def _start_ray(num_workers: int, address: str | None) -> tuple[RayConnection, list[Actor]]:
    """Start or join Ray, and solver processes that are ready."""
    ray = RayConnection(num_workers, address)
    try:
        actors = [ray.start_actor() for _ in range(num_workers)]
        ray.wait_started(actors)
    except BaseException:
        ray.close()
        raise
    return ray, actors
