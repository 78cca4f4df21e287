"""How messages and gathered parameters travel: early, once, and held no longer than they must be."""

import pytest

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.data.batch import Batch
from support_executor.groups import GroupPool
from support_executor.message_ranks import count_held_messages, gather_in_steps, trace_step
from support_executor.plans import NO_RECOMPUTE, RecomputeCount, chunk, cut, make_batch, make_plan, uniform
from support_executor.proof import prove
from support_executor.reference import TINY


def _short_sequences(
    count: int, stage_count: int, recompute: RecomputeCount = NO_RECOMPUTE
) -> tuple[ExecutionPlan, Batch]:
    batch = make_batch([5] * count)
    return make_plan([[chunk(*cut(index, 5)) for index in range(count)]], stage_count, batch, recompute), batch


def test_a_receive_starts_before_the_pass_in_front_of_it(groups: GroupPool) -> None:
    plan, batch = _short_sequences(3, 2)

    first, last = groups.run(2, trace_step, TINY, 2, plan, batch)

    assert " ".join(first) == "forward post forward wait backward post forward wait post backward wait backward"
    assert " ".join(last) == "post wait forward post backward wait forward post backward wait forward backward"


@pytest.mark.parametrize("stage_count", [2, 4])
def test_a_stage_holds_no_more_sent_messages_than_are_on_their_way_and_back(
    groups: GroupPool, stage_count: int
) -> None:
    plan, batch = _short_sequences(24, stage_count)

    ranks = groups.run(stage_count, count_held_messages, TINY, stage_count, plan, batch)

    for most, at_the_end in ranks:
        assert most <= stage_count + 1, "24 chunks send as many"
        assert at_the_end == 0


@pytest.mark.parametrize("stage_count", [2, 4])
def test_an_evaluation_holds_the_last_messages_only(groups: GroupPool, stage_count: int) -> None:
    plan, batch = _short_sequences(24, stage_count)

    ranks = groups.run(stage_count, count_held_messages, TINY, stage_count, plan, batch, "evaluate")

    assert [most for most, _ in ranks[:-1]] == [pytest.approx(2, abs=1)] * (stage_count - 1), "24 chunks send as many"
    assert ranks[-1] == (0, 0)
    assert [at_the_end for _, at_the_end in ranks] == [0] * stage_count


def test_messages_without_rows_prove_nothing_and_hold_nothing_up(groups: GroupPool) -> None:
    # The second rank of every stage has a message for two chunks of four.
    batch = make_batch([1, 6, 1, 6])
    plan = make_plan([[chunk(*cut(index, length)) for index, length in enumerate([1, 6, 1, 6])]], 2, batch)

    prove(groups, plan, batch, 2)


@pytest.mark.parametrize("recompute", [0, 1, 2])
def test_parameters_are_gathered_once_a_pass_and_of_two_layers_at_a_time(groups: GroupPool, recompute: int) -> None:
    plan, batch = _short_sequences(4, 1, uniform(recompute))
    longer = make_plan([[chunk(*cut(index, 5)) for index in range(4)]], 2, batch, uniform(recompute))

    ranks = groups.run(4, gather_in_steps, TINY, 2, 2, longer, batch, 2)
    whole = groups.run(2, gather_in_steps, TINY, 1, 2, plan, batch, 2)

    for gathers, most_layers in ranks:
        # Two layers a stage, and what lies outside of them: the embedding, or the norm and the head.
        assert gathers == [2 * 3 * 4] * 2
        assert most_layers == 2
    for gathers, most_layers in whole:
        assert gathers == [2 * 5 * 4] * 2
        assert most_layers == 2, "of four"
