"""The order of passes in one pipeline, drawn."""

from dataclasses import replace

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.profile import LinkCost
from infinipipe_contract.simulate import simulate
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, chunk_windows, order_pipeline
from support_planner.chunks import batched_chain, split_chain
from support_planner.passes import draw
from support_planner.profiles import round_profile


def test_one_long_sequence_and_short_ones_on_two_stages() -> None:
    order = order_pipeline([split_chain(0, 3, 2, 1), batched_chain((1, 5)), batched_chain((2, 4))], 2)

    assert [draw(passes) for passes in order.stages] == [
        "F0 F1 F2 F3 B2 F4 B1 B0 B3 B4",
        "F0 F1 F2 B2 F3 B1 F4 B0 B3 B4",
    ]


def test_two_long_sequences_turn_round_one_after_the_other() -> None:
    order = order_pipeline([split_chain(0, 3, 3, 3), split_chain(1, 4, 4)], 2)

    assert [draw(passes) for passes in order.stages] == [
        "F0 F1 F2 F3 B2 F4 B1 B0 B4 B3",
        "F0 F1 F2 B2 F3 B1 F4 B0 B4 B3",
    ]


@pytest.mark.parametrize(("stage_count", "chunk_count"), [(2, 5), (4, 4), (4, 9)])
def test_equal_chunks_take_the_least_time_that_any_order_could(stage_count: int, chunk_count: int) -> None:
    profile = round_profile(pp_size=stage_count, sp_size=1)
    profile = replace(
        profile,
        p2p=LinkCost(1e15, 0.0),
        memory=replace(profile.memory, model_state_bytes=(0.0,) * stage_count),
    )
    order = order_pipeline([batched_chain((index, 5)) for index in range(chunk_count)], stage_count)

    timeline = simulate([build_pipeline(order, [0] * (chunk_count + stage_count - 1))], profile)

    # A stage waits for one forward pass of every stage before it, and behind its last pass one backward pass of each
    # follows; in between the last stage works without a gap.
    costs, chunk = CostModel(profile), order.chunks[0]
    round_s = costs.forward_s(chunk, 0) + costs.backward_s(chunk, 0, 0)
    assert timeline.makespan_s == pytest.approx((chunk_count + stage_count - 1) * round_s)


def test_plain_1f1b_without_long_sequences() -> None:
    order = order_pipeline([batched_chain((index, 9 - index)) for index in range(4)], 3)

    assert [draw(passes) for passes in order.stages] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_fewer_chunks_than_stages_run_all_forwards_first_where_the_window_is_wider() -> None:
    order = order_pipeline([batched_chain((0, 9)), batched_chain((1, 8))], 4)

    assert [draw(passes) for passes in order.stages] == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]


def test_one_stage_runs_every_sequence_forward_and_backward() -> None:
    order = order_pipeline([batched_chain((0, 9)), batched_chain((1, 8))], 1)

    assert [draw(passes) for passes in order.stages] == ["F0 B0 F1 B1"]


def test_sequences_of_more_chunks_come_first_whatever_their_tokens() -> None:
    order = order_pipeline([batched_chain((0, 90)), split_chain(1, 2, 1), batched_chain((2, 95))], 2)

    assert [chunk.slices[0].sequence_index for chunk in order.chunks] == [1, 1, 2, 0]


@pytest.mark.parametrize("pp_size", [1, 2, 3, 5])
def test_a_backward_never_comes_before_its_forward_with_sequences_of_many_sizes(pp_size: int) -> None:
    chains = [split_chain(index, *(2,) * size) for index, size in enumerate([5, 4, 4, 3, 2, 1, 1])]

    order = order_pipeline(chains, pp_size)

    for passes in order.stages:
        forwards: set[int] = set()
        for kind, chunk_index in passes:
            if kind is ActionKind.FORWARD:
                forwards.add(chunk_index)
            assert chunk_index in forwards
    pipeline = build_pipeline(order, (0,) * (len(order.chunks) + pp_size - 1))
    simulate([pipeline], round_profile(pp_size=pp_size, layers=pp_size))


def test_windows_are_the_largest_sets_of_chunks_in_flight() -> None:
    order = order_pipeline([split_chain(0, 3, 2), batched_chain((1, 5)), batched_chain((2, 4))], 2)

    assert draw(order.stages[1]) == "F0 F1 B1 F2 B0 F3 B2 B3"
    assert chunk_windows(order.stages[1]) == [{0, 1}, {0, 2}, {2, 3}]
