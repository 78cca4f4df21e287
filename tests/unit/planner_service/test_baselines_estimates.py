"""Systems without a pipeline: their cost on batches small enough to compute by hand.

The round profile: two nodes of two devices, attention 1 s a token pair forward and 2 s backward, the rest 10 s and 20 s
a token, 8 layers; 48 bytes/s inside a node and device, 32 bytes/s between nodes.
"""

import dataclasses
import itertools

import pytest

from infinipipe_contract.profile import HeadCost, NodeLinks
from infinipipe_planner.baselines.breakdown import break_down_plan
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.flexsp import estimate_flexsp
from infinipipe_planner.baselines.flexsp_milp import assign_round
from infinipipe_planner.baselines.links import all2all_s, gather_s, parameter_bytes
from infinipipe_planner.baselines.megatron import estimate_megatron
from infinipipe_planner.baselines.sequence_groups import GroupCosts, micro_batch
from infinipipe_planner.baselines.ulysses import estimate_ulysses
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile, round_profile

PROFILE = round_profile()
# 2 bytes of 8 layers of (2 * 8 * (8 + 4) + 3 * 8 * 16) and of 2 * 100 * 8.
PARAMETER_BYTES = 12_416.0
GATHER_S = PARAMETER_BYTES * 1 / 2 / 32


def test_parameters_are_those_of_the_shape() -> None:
    assert parameter_bytes(PROFILE) == PARAMETER_BYTES


def test_all_to_all_inside_a_node_is_that_of_a_single_stage() -> None:
    # 2 bytes * (8 + 4) * 6 tokens / 2 devices / 48 bytes/s, and 2 * 0.25 s; twice in each of 8 layers.
    assert all2all_s(PROFILE, 6, 2) == pytest.approx((72 / 48 + 0.5) * 16)


def test_all_to_all_across_nodes_waits_for_the_link_that_the_devices_of_a_node_share() -> None:
    # Of its 36 bytes each of the 2 devices of a node sends half to the other node, through one link of 32 bytes/s.
    assert all2all_s(PROFILE, 6, 4) == pytest.approx((2 * 18 / 32 + 2 * 0.5) * 16)


def test_one_device_exchanges_nothing() -> None:
    assert all2all_s(PROFILE, 6, 1) == 0.0


def test_faster_links_between_nodes_make_only_what_crosses_them_faster() -> None:
    nodes = NodeLinks(2, 48.0, 0.25, 320.0, 0.5)
    faster = dataclasses.replace(PROFILE, nodes=nodes)

    assert all2all_s(faster, 6, 4) < all2all_s(PROFILE, 6, 4)
    assert all2all_s(faster, 6, 2) == all2all_s(PROFILE, 6, 2)


def test_parameters_enter_a_node_through_its_one_link() -> None:
    assert gather_s(PROFILE) == pytest.approx(GATHER_S)


def test_ulysses_on_one_sequence() -> None:
    parts = estimate_ulysses([6], PROFILE)

    assert parts.work_s == pytest.approx((3 * 36 + 30 * 6) / 4)
    assert parts.exchange_s == pytest.approx(2 * 34)
    # Forward hides 24 s of one gather, backward 48 s of two.
    assert parts.zero_s == pytest.approx(3 * GATHER_S - 24 - 48)
    assert parts.hidden_zero_s == pytest.approx(24 + 48)
    assert parts.recompute_s == 0.0
    assert parts.idle_s == pytest.approx(0.0, abs=1e-9)
    assert parts.peak_bytes == pytest.approx(1000 + 420 * 6 / 4)
    assert parts.configuration == "sp 4, 1 micro-batch, 0 layers recomputed"


def test_replicas_of_ulysses_run_side_by_side() -> None:
    two, one = estimate_ulysses([6, 6], PROFILE, sp_size=2), estimate_ulysses([6], PROFILE, sp_size=2)

    assert two.total_s == pytest.approx(one.total_s)
    assert one.idle_s == pytest.approx(one.total_s / 2)


def test_ulysses_runs_several_micro_batches_where_memory_asks_for_them() -> None:
    # 6 tokens need 1000 + 420 * 6 / 4 bytes.
    profile = round_profile(device_memory_bytes=1_640.0)

    parts = estimate_ulysses([6, 6, 6], profile)

    assert parts.configuration.startswith("sp 4, 3 micro-batches, 0 layers")
    assert parts.total_s == pytest.approx(3 * estimate_ulysses([6], profile).total_s)


def test_a_size_of_groups_that_does_not_divide_the_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="sp_size is 3, it must be a divisor of the cluster's 4 devices"):
        estimate_ulysses([6], PROFILE, sp_size=3)


def test_flexsp_keeps_a_sequence_inside_a_node_where_that_is_faster() -> None:
    parts = estimate_flexsp([6], PROFILE)

    # On two devices: twice the work, but all-to-alls over the link inside the node.
    assert parts.total_s == pytest.approx(144 + 64 + 3 * GATHER_S - 144)
    assert parts.configuration == "sp 2, 1 round, 0 layers recomputed"


def test_flexsp_is_never_slower_than_ulysses_on_real_shapes() -> None:
    profile = llama_profile()
    lengths = github_lengths(128, 65_536)

    assert estimate_flexsp(lengths, profile).total_s <= estimate_ulysses(lengths, profile).total_s


@pytest.mark.parametrize("lengths", [[6, 6], [9, 6, 4], [40, 9, 6, 5, 3], [30, 25, 20, 16, 12]])
def test_the_program_of_flexsp_finds_what_exhaustive_search_finds(lengths: list[int]) -> None:
    costs = GroupCosts(PROFILE, 0)

    groups = assign_round(lengths, [2, 4], costs)

    assert groups is not None
    assert sorted(n for _, of_group in groups for n in of_group) == sorted(lengths)
    assert _slowest_s([(size, list(part)) for size, part in groups], costs) == pytest.approx(
        min(_slowest_s(groups, costs) for groups in _all_assignments(lengths)), rel=0.02
    )


def test_the_program_of_flexsp_keeps_to_the_memory_of_a_group() -> None:
    # Two devices hold 1000 + 420 * 100 / 2 bytes. By work alone all short sequences, 120 tokens, would go together.
    costs = GroupCosts(round_profile(device_memory_bytes=22_000.0), 0)

    groups = assign_round([60] + [10] * 12, [2], costs)

    assert groups is not None
    assert sorted(sum(of_group) for _, of_group in groups) == [80, 100]


def _all_assignments(lengths: list[int]) -> list[list[tuple[int, list[int]]]]:
    together = [(4, lengths)]
    found = [together]
    for picks in itertools.product([0, 1], repeat=len(lengths)):
        parts: list[list[int]] = [[], []]
        for length, pick in zip(lengths, picks, strict=True):
            parts[pick].append(length)
        found.append([(2, part) for part in parts if part])
    return found


def _slowest_s(groups: list[tuple[int, list[int]]], costs: GroupCosts) -> float:
    batches = [micro_batch(size, lengths) for size, lengths in groups]
    return max(costs.rates(one.group_size).busy_s(one.tokens, one.quadratic) for one in batches)


def test_megatron_on_one_sequence_shared_by_two_nodes() -> None:
    parts = estimate_megatron([6], PROFILE, cp_size=2)

    # Tensor parallel: 4 collectives in 8 layers, half of 2 bytes * 8 * 3 tokens over 48 bytes/s, and 0.25 s.
    tensor_s = 32 * (24 / 48 + 0.25)
    # Ring: one step in 8 layers, 2 * 2 bytes * 4 * 3 tokens over 32 bytes/s, and 0.5 s; half of attention hides it.
    forward_ring_s = 8 * (48 / 32 + 0.5) - 36 / 4 / 2
    backward_ring_s = 8 * (96 / 32 + 0.5) - 72 / 4 / 2
    assert parts.work_s == pytest.approx(72)
    assert parts.exchange_s == pytest.approx(2 * tensor_s + forward_ring_s + backward_ring_s)
    assert parts.zero_s == pytest.approx(2 * PARAMETER_BYTES / 2 / 32)
    assert parts.configuration == "tp 2, cp 2, pp 1, 1 micro-batch, 0 layers recomputed"


def test_long_attention_hides_the_ring() -> None:
    short, long = (estimate_megatron([n], PROFILE, cp_size=2) for n in (6, 200))

    tensor_s = 32 * (2 * 8 * 100 / 2 / 48 + 0.25)
    assert short.exchange_s > 0
    assert long.exchange_s == pytest.approx(2 * tensor_s)


def test_nodes_of_megatron_that_do_not_share_sequences_are_stages_with_a_bubble() -> None:
    parts = estimate_megatron([6, 6, 6], PROFILE, cp_size=1)

    assert "pp 2, 3 micro-batches" in parts.configuration
    assert parts.zero_s == 0.0
    # One slot of warm-up and cool-down beside three micro-batches.
    assert parts.idle_s == pytest.approx(parts.total_s / 4)


def test_recompute_of_megatron_is_fixed_whatever_the_batch_needs() -> None:
    none, all_layers = (estimate_megatron([6], PROFILE, 2, layers) for layers in (0, 8))

    assert all_layers.recompute_s == pytest.approx(24 + 24 + 8 * (48 / 32 + 0.5) - 36 / 4 / 2)
    assert all_layers.peak_bytes < none.peak_bytes


@pytest.mark.parametrize("estimate", [estimate_ulysses, estimate_flexsp, estimate_megatron])
def test_a_sequence_that_cannot_fit_is_refused_with_the_bytes(estimate: object) -> None:
    profile = round_profile(device_memory_bytes=1_100.0)
    assert callable(estimate)

    with pytest.raises(
        BaselineDoesNotFitError, match=r"the longest sequence, 100 tokens, needs [\d,]+ bytes .* 1,100 are"
    ):
        estimate([100, 5], profile)


def test_rates_tell_the_time_of_a_micro_batch_whose_computation_hides_zero() -> None:
    costs = GroupCosts(PROFILE, 4)
    batch = micro_batch(4, [100, 30])

    assert costs.rates(4).busy_s(130, 10_900) == pytest.approx(costs.total_s(batch))


def test_more_recompute_makes_room_for_more_tokens() -> None:
    capacities = [GroupCosts(PROFILE, layers).capacity_tokens(4) for layers in (0, 4, 8)]

    assert capacities == sorted(capacities)
    # With every layer recomputed 2 bytes * 8 for each of 8 layers and 20 of logits stay.
    assert capacities[-1] == int((1e9 - 1000) * 4 / (128 + 20))


def test_the_head_is_work_on_all_devices_and_never_recomputed() -> None:
    headed = dataclasses.replace(PROFILE, head=HeadCost(4.0, 9.0))

    for estimate in (estimate_ulysses, estimate_flexsp, estimate_megatron):
        without, with_head = estimate([6], PROFILE), estimate([6], headed)
        assert with_head.work_s - without.work_s == pytest.approx(13 * 6 / 4)
        assert with_head.recompute_s == without.recompute_s
    group, batch = GroupCosts(headed, 0), micro_batch(2, [6])
    assert group.rates(2).busy_s(6, 36) - GroupCosts(PROFILE, 0).rates(2).busy_s(6, 36) == pytest.approx(13 * 6 / 2)
    assert group.total_s(batch) - GroupCosts(PROFILE, 0).total_s(batch) == pytest.approx(13 * 6 / 2)


def test_the_parts_of_a_plan_on_uneven_stages_add_up_to_its_time() -> None:
    profile = dataclasses.replace(PROFILE, layer_division=(6, 2), head=HeadCost(4.0, 9.0))
    plan = solve_plan([40, 9, 6, 3], profile, PlanOptions(policy="paper"))

    parts = break_down_plan(plan, profile)

    busy_s = sum(stage.busy_s for stage in plan.estimate.stages) / 2
    assert parts.total_s == pytest.approx(plan.estimate.makespan_s)
    assert parts.total_s - parts.idle_s == pytest.approx(busy_s)
