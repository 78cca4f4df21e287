"""A stored plan run again, offline: the same batch and the same plan give the same loss, bit by bit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_executor.plan_client import PlanClient
from infinipipe_planner.cli import build_app
from infinipipe_planner.cli.inputs import read_plan
from support_e2e.planner import ThreadSolver, planner_thread
from support_e2e.runs import TINY, tiny_profile
from support_executor.groups import GroupPool
from support_executor.plans import make_batch
from support_executor.ranks import run_step

pytestmark = pytest.mark.e2e

LENGTHS = (120, 7, 33, 5, 64)


@pytest.fixture(scope="module")
def groups() -> Iterator[GroupPool]:
    pool = GroupPool()
    yield pool
    pool.close()


def test_a_plan_taken_from_the_planner_later_gives_the_loss_of_the_run(groups: GroupPool, tmp_path: Path) -> None:
    batch = make_batch(LENGTHS, vocab=TINY.vocab)
    path = tmp_path / "plan.json"
    with planner_thread(ThreadSolver()) as address, PlanClient(address) as client:
        client.create_job("tiny", tiny_profile(2, 1), context_tokens=128)
        client.submit_batch(4, LENGTHS, batch.target_token_count)
        ran = groups.run(2, run_step, TINY, 2, 1, client.fetch_plan(4, timeout_s=60), batch)

        shown = CliRunner().invoke(build_app(), ["show", "tiny", "4", "--json", "--planner", address])
        path.write_text(shown.stdout)

    stored = read_plan(path)
    replayed = groups.run(2, run_step, TINY, 2, 1, stored, batch)

    assert json.loads(shown.stdout)["plan"]["step"] == "4"
    assert len(stored.pipelines[0].chunks) > 1, "a plan of one chunk has nothing to get wrong"
    assert [rank.loss for rank in replayed] == [rank.loss for rank in ran]
    assert [rank.norm for rank in replayed] == [rank.norm for rank in ran]
