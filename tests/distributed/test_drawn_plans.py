"""Plans in any legal order end on real ranks, and would end over channels that hold nothing back."""

import pytest

from infinipipe_contract.plan import ChunkKind, chunk_kinds
from support_executor.drawn import draw_plan
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.proof import prove
from support_executor.rendezvous import play

SEEDS = range(300)


@pytest.mark.parametrize("stage_count", [2, 3, 4])
def test_every_message_meets_its_receiver_though_none_moves_before_somebody_waits_for_it(stage_count: int) -> None:
    plays = [play(draw_plan(seed, stage_count)[0], sends_block=False) for seed in SEEDS]

    assert not [one.waiting for one in plays if one.waiting]
    assert not [one.unpaired for one in plays if one.unpaired]
    assert max(one.longest_queue for one in plays) > 1


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_four_ranks_run_the_same_plans_to_the_gradients_of_one_sequence_at_a_time(groups: GroupPool, seed: int) -> None:
    plan, batch = draw_plan(seed, 4)

    prove(groups, plan, batch, 1)


def test_the_drawn_plans_hold_all_kinds_of_chunk_several_pipelines_and_recompute() -> None:
    plans = [draw_plan(seed, 4)[0] for seed in SEEDS[:8]]

    assert {kind for plan in plans for one in plan.pipelines for kind in chunk_kinds(one.chunks)} == set(ChunkKind)
    assert {len(plan.pipelines) for plan in plans} == {1, 2}
    assert {a.recompute_layer_count for plan in plans for one in plan.pipelines for a in one.stages[0]} == {0, 1}


def test_stages_that_stood_still_until_a_message_has_moved_would_wait_for_each_other_for_ever() -> None:
    # Why a send never waits: in plain 1F1B, one stage sends an activation while the next one sends a gradient back.
    batch = make_batch([5, 5])
    plan = make_plan([[chunk(*cut(0, 5)), chunk(*cut(1, 5))]], 2, batch)

    assert play(plan, sends_block=True).waiting.keys() == {0, 1}
    assert not play(plan, sends_block=False).waiting
