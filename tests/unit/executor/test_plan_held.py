"""A rank without the plan that other ranks hold gives up before they do: they wait for it in a collective."""

from collections.abc import Callable
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from infinipipe_executor.config import PlannerConfig
from infinipipe_executor.errors import PlannerUnavailableError
from infinipipe_executor.planning import Planning
from support_e2e.runs import tiny_profile
from support_e2e.trainer_ranks import LocalPlanner
from support_executor.plans import make_batch

PROFILE = tiny_profile(1, 1)
BATCH = make_batch([5, 7], vocab=300)
OPTIONS = PlannerConfig(connect_timeout_s=10.0)


def planning_of(rank: int, store: HashStore) -> tuple[Planning, LocalPlanner]:
    planner = LocalPlanner(PROFILE)
    return Planning(planner, rank, PROFILE, 600.0, options=OPTIONS, store=store), planner


def take_plan(planning: Planning, planner: LocalPlanner) -> None:
    planner.submit_batch(0, BATCH.lengths_tokens, BATCH.target_token_count)
    planning.fetch(0, BATCH)


def wait(waits_s: list[float], meanwhile: Callable[[], None]) -> Callable[..., Any]:
    """Make a call that the planner does not answer, during which ``meanwhile`` happens behind 5 seconds."""

    def call(*_: Any, on_wait: Callable[[float], None], **_others: Any) -> None:
        on_wait(5.0)
        meanwhile()
        for waited_s in range(10, 601, 5):
            waits_s.append(waited_s)
            on_wait(waited_s)
        raise PlannerUnavailableError("no plan after 600 s")

    return call


@pytest.mark.parametrize(("rank", "method"), [(1, "fetch_plan"), (0, "submit_batch")])
def test_a_rank_that_does_not_reach_the_planner_for_a_plan_that_others_hold_says_so_and_ends(
    rank: int, method: str
) -> None:
    store, waits_s = HashStore(), list[float]()
    other, others_planner = planning_of(2, store)
    planning, planner = planning_of(rank, store)
    setattr(planner, method, wait(waits_s, lambda: take_plan(other, others_planner)))
    planning.submit(0, BATCH)

    with pytest.raises(
        PlannerUnavailableError,
        match=rf"rank {rank} waits for the plan of step 0, which other ranks have had for up to 10 s: .*"
        r"127\.0\.0\.1:1 .*\(\[planner\] connect_timeout_s\)",
    ):
        planning.fetch(0, BATCH)

    assert waits_s == [10, 15], "others may hold the plan since 5 s"


def test_a_plan_that_nobody_holds_is_waited_for_to_the_end() -> None:
    store, waits_s = HashStore(), list[float]()
    take_plan(*planning_of(2, store))
    planning, planner = planning_of(1, store)
    planner.fetch_plan = wait(waits_s, lambda: None)  # type: ignore[method-assign]  # a planner that is away

    with pytest.raises(PlannerUnavailableError, match="no plan after 600 s"):
        planning.fetch(1, BATCH)

    assert waits_s[-1] == 600
