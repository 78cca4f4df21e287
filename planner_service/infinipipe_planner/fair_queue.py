"""Whose batch is solved next: jobs take turns, and a queue that is full says so instead of growing.

A job that hands in a hundred batches delays another job's next one by one batch, not by a hundred.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from infinipipe_planner.errors import PlannerError
from infinipipe_planner.job_records import JobId

RETRY_PAUSE_S = 1.0
"""What clients of a full queue are told to wait: about the time of a few solves."""


class QueueFullError(PlannerError):
    """The queue takes no more batches for now; the message names the limit that is reached."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A batch's place in the queue; ``turn`` is set once it may be solved."""

    job: JobId
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class FairQueue:
    """Batches of all jobs that are being solved or wait for it.

    Args:
        slots: Batches solved at the same time.
        max_batches: Batches that the queue takes, the ones being solved included.
        max_batches_per_job: The same for one job.
    """

    def __init__(self, slots: int, max_batches: int, max_batches_per_job: int) -> None:
        self._slots = slots
        self._max_batches = max_batches
        self._max_batches_per_job = max_batches_per_job
        self._running: list[Ticket] = []
        self._waiting: OrderedDict[JobId, deque[Ticket]] = OrderedDict()  # the job whose turn is next stands first

    @property
    def waiting_count(self) -> int:
        """Batches that wait for their turn; may be asked for in any thread."""
        return sum(map(len, list(self._waiting.values())))

    @property
    def running_count(self) -> int:
        """Batches that are being solved; may be asked for in any thread."""
        return len(self._running)

    def require_room(self, job: JobId) -> None:
        """Refuse a job's batch when the queue is full.

        Raises:
            QueueFullError: If it is.
        """
        waiting_count = self.waiting_count
        mine = len(self._waiting.get(job, ())) + sum(ticket.job == job for ticket in self._running)
        if mine >= self._max_batches_per_job:
            raise QueueFullError(
                f"{mine} batches of {f'job {job.name!r}' if job.name else 'callers without a job'} are unsolved, "
                f"at most {self._max_batches_per_job} may be; try again in {RETRY_PAUSE_S:g} s"
            )
        if waiting_count + len(self._running) >= self._max_batches:
            raise QueueFullError(
                f"{waiting_count + len(self._running)} batches of all jobs are unsolved, at most {self._max_batches} "
                f"may be; try again in {RETRY_PAUSE_S:g} s"
            )

    def enter(self, job: JobId) -> Ticket:
        """Take a place at the end of a job's line; ``leave`` gives it back."""
        ticket = Ticket(job)
        self._waiting.setdefault(job, deque()).append(ticket)
        self._start_next()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place back, before, during or after the turn."""
        if ticket in self._running:
            self._running.remove(ticket)
            self._start_next()
        elif ticket in self._waiting.get(ticket.job, ()):
            self._waiting[ticket.job].remove(ticket)
            if not self._waiting[ticket.job]:
                del self._waiting[ticket.job]

    def position(self, ticket: Ticket) -> int:
        """Count the batches ahead of one, solved now or with an earlier turn; 0 once it left."""
        if ticket in self._running:
            return self._running.index(ticket)
        if ticket not in self._waiting.get(ticket.job, ()):
            return 0
        rounds = self._waiting[ticket.job].index(ticket)
        jobs = list(self._waiting)
        my_place = jobs.index(ticket.job)
        ahead = sum(min(len(self._waiting[job]), rounds + (place < my_place)) for place, job in enumerate(jobs))
        return len(self._running) + ahead

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            job, tickets = next(iter(self._waiting.items()))
            ticket = tickets.popleft()
            if tickets:
                self._waiting.move_to_end(job)
            else:
                del self._waiting[job]
            self._running.append(ticket)
            ticket.turn.set()
