"""Waiting for a call of the planning service: how much time is left, and whom to tell how much is gone."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc

PROGRESS_INTERVAL_S = 5.0
"""Seconds between two calls of ``on_wait``."""


class Waiting:
    """The time of one call.

    Args:
        timeout_s: Seconds that the call may take.
        on_wait: Told every few seconds how many seconds are gone; None tells nobody.
    """

    def __init__(self, timeout_s: float, on_wait: Callable[[float], None] | None) -> None:
        self._started_s = time.monotonic()
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._next_progress_s = PROGRESS_INTERVAL_S

    @property
    def waited_s(self) -> float:
        """Seconds that are gone."""
        return time.monotonic() - self._started_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._timeout_s - self.waited_s)

    @property
    def until_progress_s(self) -> float:
        """Seconds until somebody is to be told; at least a moment, so that waiting for it makes progress."""
        return max(0.01, self._next_progress_s - self.waited_s)

    def tell(self) -> None:
        """Tell how much time is gone, if it is time to."""
        if self.waited_s >= self._next_progress_s:
            self._next_progress_s += PROGRESS_INTERVAL_S
            if self._on_wait is not None:
                self._on_wait(self.waited_s)

    def sleep(self, pause_s: float) -> None:
        """Pause before another attempt, but no longer than time is left."""
        time.sleep(min(pause_s, self.left_s))
        self.tell()


def wait_for_result(future: Any, waiting: Waiting) -> Any:  # noqa: ANN401  # grpc's future has no public type
    """Wait for a call and tell about it; an interrupt takes the call back."""
    with contextlib.ExitStack() as on_interrupt:
        on_interrupt.callback(future.cancel)  # does nothing to a call that is over
        while True:
            try:
                return future.result(timeout=waiting.until_progress_s)
            except grpc.FutureTimeoutError:
                waiting.tell()
