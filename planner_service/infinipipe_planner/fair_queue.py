"""Whose batch is solved next: owners take turns, and the jobs of each; a queue that is full says so and does not grow.

A job that hands in a hundred batches delays another job's next one by one batch, not by a hundred; so does an owner
with a hundred jobs another owner's next batch.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from infinipipe_planner.authentication import NOBODY
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


_Jobs = OrderedDict[JobId, deque[Ticket]]
_Waiting = OrderedDict[str, _Jobs]
"""Batches by owner and job; whose turn is next stands first."""


class FairQueue:
    """Batches of all jobs that are being solved or wait for it.

    Args:
        slots: Batches solved at the same time.
        max_batches: Batches that the queue takes, the ones being solved included.
        max_batches_per_job: The same for one job.
        max_batches_per_owner: The same for one owner, where there are owners.
    """

    def __init__(self, slots: int, max_batches: int, max_batches_per_job: int, max_batches_per_owner: int) -> None:
        self._slots = slots
        self._max_batches = max_batches
        self._max_batches_per_owner = max_batches_per_owner
        self._max_batches_per_job = max_batches_per_job
        self._running: list[Ticket] = []
        self._waiting: _Waiting = OrderedDict()

    @property
    def waiting_count(self) -> int:
        """Batches that wait for their turn; may be asked for in any thread."""
        return sum(len(tickets) for jobs in list(self._waiting.values()) for tickets in list(jobs.values()))

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
        jobs = self._waiting.get(job.owner, _Jobs())
        mine = len(jobs.get(job, ())) + sum(ticket.job == job for ticket in self._running)
        of_owner = sum(map(len, jobs.values())) + sum(ticket.job.owner == job.owner for ticket in self._running)
        if mine >= self._max_batches_per_job:
            raise QueueFullError(
                f"{mine} batches of {f'job {job.name!r}' if job.name else 'callers without a job'} are unsolved, "
                f"at most {self._max_batches_per_job} may be; try again in {RETRY_PAUSE_S:g} s"
            )
        if job.owner != NOBODY and of_owner >= self._max_batches_per_owner:
            raise QueueFullError(
                f"{of_owner} batches of the jobs of {job.owner!r} are unsolved, at most {self._max_batches_per_owner} "
                f"may be; try again in {RETRY_PAUSE_S:g} s"
            )
        if waiting_count + len(self._running) >= self._max_batches:
            raise QueueFullError(
                f"{waiting_count + len(self._running)} batches of all jobs are unsolved, at most {self._max_batches} "
                f"may be; try again in {RETRY_PAUSE_S:g} s"
            )

    def enter(self, job: JobId) -> Ticket:
        """Take a place at the end of a job's line; ``leave`` gives it back."""
        ticket = Ticket(job)
        self._waiting.setdefault(job.owner, _Jobs()).setdefault(job, deque()).append(ticket)
        self._start_next()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give a place back, before, during or after the turn."""
        if ticket in self._running:
            self._running.remove(ticket)
            self._start_next()
            return
        jobs = self._waiting.get(ticket.job.owner, _Jobs())
        if ticket in jobs.get(ticket.job, ()):
            jobs[ticket.job].remove(ticket)
            if not jobs[ticket.job]:
                del jobs[ticket.job]
            if not jobs:
                del self._waiting[ticket.job.owner]

    def position(self, ticket: Ticket) -> int:
        """Count the batches ahead of one, solved now or with an earlier turn; 0 once it left."""
        if ticket in self._running:
            return self._running.index(ticket)
        for turns, waiting in enumerate(_in_turn(self._waiting)):
            if waiting is ticket:
                return len(self._running) + turns
        return 0

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            ticket = _take_turn(self._waiting)
            self._running.append(ticket)
            ticket.turn.set()


def _take_turn(waiting: _Waiting) -> Ticket:
    """Take the batch out whose turn it is; its owner, and its job among the owner's, go to the end."""
    owner, jobs = next(iter(waiting.items()))
    job, tickets = next(iter(jobs.items()))
    ticket = tickets.popleft()
    if tickets:
        jobs.move_to_end(job)
    else:
        del jobs[job]
    if jobs:
        waiting.move_to_end(owner)
    else:
        del waiting[owner]
    return ticket


def _in_turn(waiting: _Waiting) -> Iterator[Ticket]:
    """Go through the batches in the order of their turns."""
    left: _Waiting = OrderedDict(
        (owner, _Jobs((job, deque(tickets)) for job, tickets in jobs.items())) for owner, jobs in waiting.items()
    )
    while left:
        yield _take_turn(left)
