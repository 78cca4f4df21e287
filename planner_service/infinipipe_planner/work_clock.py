"""How long solver processes have worked on one batch: what ``--max-solve-s`` bounds.

The time in which none of them does, because other batches have their turn, does not count: a batch is never stopped
for what it waited behind another one.
"""

import time


class WorkClock:
    """Runs while at least one solver process works on the batch. Not safe to use from two threads at once."""

    def __init__(self) -> None:
        self._working_count = 0
        self._started_s = 0.0
        self._earlier_s = 0.0

    @property
    def passed_s(self) -> float:
        """Seconds so far."""
        running_s = time.monotonic() - self._started_s if self._working_count else 0.0
        return self._earlier_s + running_s

    def begin(self) -> None:
        """Count one more process."""
        if self._working_count == 0:
            self._started_s = time.monotonic()
        self._working_count += 1

    def end(self) -> None:
        """Count one process less."""
        self._earlier_s = self.passed_s if self._working_count == 1 else self._earlier_s
        self._working_count -= 1
