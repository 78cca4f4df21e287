"""A rank that waits for the store of the job, which went away with another rank, says so in one sentence."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import Store, TCPStore

from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.planning import Planning, _share_generation
from infinipipe_executor.stop import StopSignal
from support_e2e.runs import tiny_profile
from support_e2e.trainer_ranks import LocalPlanner
from support_executor.plans import make_batch


def wait_for_generation(store: Store) -> None:
    _share_generation(1, 0, 20.0, store)


def wait_for_a_plan_of_an_evaluation(store: Store) -> None:
    profile = tiny_profile(1, 1)
    planning = Planning(LocalPlanner(profile), 1, profile, 20.0, store=store)
    planning.plan_held_out(0, make_batch([5], vocab=300))


def look_for_a_stop_while_waiting(store: Store) -> None:
    stop, profile = StopSignal(), tiny_profile(1, 1)
    stop.defer(store)
    planner = LocalPlanner(profile)
    planner.fetch_plan = lambda _, on_wait, **_others: on_wait(5.0)  # type: ignore[method-assign]  # a long wait
    Planning(planner, 1, profile, 20.0, stop).fetch(0, make_batch([5], vocab=300))


@pytest.mark.parametrize("wait", [wait_for_generation, wait_for_a_plan_of_an_evaluation, look_for_a_stop_while_waiting])
def test_a_wait_for_a_store_that_is_gone_ends_at_once_with_a_lost_rank(wait: Callable[[Store], None]) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=20))
    del server  # with its process, in a run

    with pytest.raises(PeerLostError, match="rank 1 lost another rank during "):
        wait(store)


def test_a_job_that_is_not_opened_in_time_is_told_with_the_seconds() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    with pytest.raises(PeerLostError, match=r"^rank 1 waited 0\.05 s for rank 0 to open the job"):
        _share_generation(1, 0, 0.05, server)
