"""The queue in front of the solvers: turns, limits, places."""

import pytest

from infinipipe_planner.fair_queue import FairQueue, QueueFullError, Ticket
from infinipipe_planner.job_records import JobId

A, B = (JobId("", name) for name in "ab")


def order_of(queue: FairQueue, tickets: list[Ticket]) -> list[str]:
    """Solve one batch after the other; return whose they were."""
    order = []
    while tickets:
        (ticket,) = [ticket for ticket in tickets if ticket.turn.is_set()]
        order.append(ticket.job.name)
        tickets.remove(ticket)
        queue.leave(ticket)
    return order


def test_jobs_take_turns_however_many_batches_one_of_them_has() -> None:
    queue = FairQueue(1, 100, 100, 100)
    tickets = [queue.enter(JobId("", name)) for name in "aaaaabbc"]

    assert "".join(order_of(queue, tickets)) == "aabcabaa"


def test_a_place_is_the_number_of_batches_that_are_solved_before() -> None:
    queue = FairQueue(1, 100, 100, 100)
    jobs = zip("xxxxxxyyx", "aaabbcaab", strict=True)  # owners and names
    tickets = [queue.enter(JobId(owner, name)) for owner, name in jobs]
    places = {ticket: queue.position(ticket) for ticket in tickets}

    solved: list[Ticket] = []
    while len(solved) < len(tickets):
        (ticket,) = [ticket for ticket in tickets if ticket.turn.is_set() and ticket not in solved]
        solved.append(ticket)
        queue.leave(ticket)

    assert [places[ticket] for ticket in solved] == list(range(len(tickets)))


def test_as_many_batches_as_there_are_slots_are_solved_at_once() -> None:
    queue = FairQueue(3, 100, 100, 100)
    tickets = [queue.enter(A) for _ in range(5)]

    assert [ticket.turn.is_set() for ticket in tickets] == [True, True, True, False, False]
    queue.leave(tickets[1])
    assert tickets[3].turn.is_set()
    assert not tickets[4].turn.is_set()


def test_a_batch_that_leaves_while_it_waits_is_never_given_a_turn() -> None:
    queue = FairQueue(1, 100, 100, 100)
    running, dropped, last = (queue.enter(JobId("", name)) for name in "abb")

    for _ in range(2):
        queue.leave(dropped)
    queue.leave(running)

    assert (dropped.turn.is_set(), last.turn.is_set()) == (False, True)


def test_leaving_twice_frees_one_slot_only() -> None:
    queue = FairQueue(1, 100, 100, 100)
    tickets = [queue.enter(A) for _ in range(3)]

    for _ in range(2):
        queue.leave(tickets[0])

    assert [ticket.turn.is_set() for ticket in tickets] == [True, True, False]


def test_a_full_queue_names_whose_limit_is_reached_and_what_it_is() -> None:
    queue = FairQueue(1, max_batches=3, max_batches_per_job=2, max_batches_per_owner=1)
    first = queue.enter(A)
    queue.enter(A)

    with pytest.raises(QueueFullError, match=r"2 batches of job 'a' are unsolved, at most 2 may be; try again in 1 s"):
        queue.require_room(A)
    queue.require_room(B)
    queue.enter(B)
    with pytest.raises(QueueFullError, match=r"3 batches of all jobs are unsolved, at most 3 may be"):
        queue.require_room(B)
    queue.leave(first)
    queue.require_room(B)


def test_an_owner_of_one_job_waits_for_one_batch_of_another_owner_however_many_jobs_that_one_has() -> None:
    queue = FairQueue(1, 100, 100, 100)
    tickets = [queue.enter(JobId("greedy", name)) for name in "abcdefgh"]
    tickets += [queue.enter(JobId("modest", name)) for name in "yz"]

    assert "".join(order_of(queue, tickets)) == "abyczdefgh"


def test_an_owner_with_too_many_batches_in_all_jobs_is_put_off_and_the_others_are_not() -> None:
    queue = FairQueue(1, max_batches=9, max_batches_per_job=9, max_batches_per_owner=3)
    first, *_ = [queue.enter(JobId("greedy", name)) for name in "abc"]

    with pytest.raises(
        QueueFullError, match=r"3 batches of the jobs of 'greedy' are unsolved, at most 3 may be; try again in 1 s"
    ):
        queue.require_room(JobId("greedy", "d"))
    queue.require_room(JobId("modest", "a"))
    queue.leave(first)
    queue.require_room(JobId("greedy", "d"))
