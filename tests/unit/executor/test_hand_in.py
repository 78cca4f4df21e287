"""Lengths are handed in beside the training: a planner that does not take those of the next step holds up no step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infinipipe_executor import call_waiting
from infinipipe_executor.errors import PlannerUnavailableError
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planning import Planning
from infinipipe_executor.stop import StopRequestedError, StopSignal
from support_e2e.busy_planner import busy_planner
from support_e2e.runs import tiny_profile, write_run
from support_e2e.trainer_ranks import train_at_planner
from support_executor.groups import GroupPool
from support_executor.plans import make_batch

pytestmark = pytest.mark.distributed

PROFILE = tiny_profile(1, 1)
COLLECTIVE_TIMEOUT_S = 3.0


@pytest.fixture
def groups() -> Iterator[GroupPool]:
    pool = GroupPool()
    yield pool
    pool.close()


@pytest.mark.alone
def test_a_run_goes_on_when_the_planner_is_busy_for_longer_than_a_collective_may_take(
    groups: GroupPool, tmp_path: Path
) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1)

    with busy_planner(tiny_profile(2, 1), busy_step=1, busy_s=COLLECTIVE_TIMEOUT_S + 1) as address:
        ranks = groups.run(2, train_at_planner, config, address, COLLECTIVE_TIMEOUT_S)

    for is_done, waits_s in ranks:
        assert is_done
        assert len(waits_s) == 4
        assert waits_s[1] > COLLECTIVE_TIMEOUT_S, "each rank has waited for the plan, none for another rank"


@pytest.mark.parametrize("busy_step", [0, 1])
def test_what_became_of_a_batch_is_told_where_its_plan_is_taken(busy_step: int) -> None:
    batch = make_batch([5, 7], vocab=300)
    with busy_planner(PROFILE, busy_step=busy_step, busy_s=60) as address, PlanClient(address) as client:
        client.create_job("a", PROFILE, context_tokens=128)
        planning = Planning(client, 0, PROFILE, wait_timeout_s=0.5)
        for step in range(2):
            planning.submit(step, batch)

        if busy_step:
            assert planning.fetch(0, batch)[0].step == 0
        with pytest.raises(PlannerUnavailableError, match=r"too busy for SubmitBatch after 0.5 s: the queue is full"):
            planning.fetch(busy_step, batch)


def test_a_rank_that_is_told_to_end_gives_up_a_batch_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_waiting, "PROGRESS_INTERVAL_S", 0.05)
    batch, stop = make_batch([5, 7], vocab=300), StopSignal()
    with busy_planner(PROFILE, busy_step=0, busy_s=60) as address, PlanClient(address) as client:
        client.create_job("a", PROFILE, context_tokens=128)
        planning = Planning(client, 0, PROFILE, 60.0, stop)
        planning.submit(0, batch)
        stop._is_requested = True

        with pytest.raises(StopRequestedError):
            planning.fetch(0, batch)
