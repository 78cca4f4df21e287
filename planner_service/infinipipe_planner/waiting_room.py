"""Callers that wait for plans: each sleeps until something about its job changes, and there are only so many."""

import asyncio
from collections import Counter

from infinipipe_planner.authentication import NOBODY
from infinipipe_planner.errors import PlannerError
from infinipipe_planner.job_records import JobId


class TooManyWaitersError(PlannerError):
    """As many callers wait for plans as may."""


class WaitingRoom:
    """Lets callers sleep; one that vanishes leaves nothing.

    Args:
        max_waiters: Callers that may wait at the same time; half of them of one owner, where there are owners.
    """

    def __init__(self, max_waiters: int) -> None:
        self._max_waiters = max_waiters
        self._waiter_counts: Counter[str] = Counter()  # by owner
        self._events: dict[JobId, asyncio.Event] = {}

    @property
    def waiter_count(self) -> int:
        """Callers that wait; may be asked for in any thread."""
        return sum(list(self._waiter_counts.values()))

    async def wait(self, job: JobId) -> None:
        """Sleep until something about a job changes.

        Raises:
            TooManyWaitersError: If too many do already.
        """
        self._require_room(job.owner)
        self._waiter_counts[job.owner] += 1
        try:
            await self._events.setdefault(job, asyncio.Event()).wait()
        finally:
            self._waiter_counts[job.owner] -= 1

    def announce(self, job: JobId) -> None:
        """Wake the callers that wait for a job."""
        event = self._events.pop(job, None)
        if event is not None:
            event.set()

    def announce_all(self) -> None:
        """Wake all callers."""
        for job in list(self._events):
            self.announce(job)

    def _require_room(self, owner: str) -> None:
        if self.waiter_count >= self._max_waiters:
            raise TooManyWaitersError(
                f"{self.waiter_count} callers wait for plans, at most {self._max_waiters} may "
                "(--max-waiters of the planner)"
            )
        of_owner, share = self._waiter_counts[owner], self._max_waiters // 2
        if owner != NOBODY and of_owner >= share:
            raise TooManyWaitersError(
                f"{of_owner} callers wait for plans of {owner!r}, at most {share} may, "
                "half of --max-waiters of the planner"
            )
