"""Dry runs: which layouts are tried, and which one wins."""

import dataclasses

import pytest

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.analytic.dry_run import Layout, LayoutResult, fastest, legal_layouts, try_layout
from infinipipe_planner.analytic.lengths import synthetic_lengths
from infinipipe_planner.analytic.profile import Hardware
from infinipipe_planner.errors import InfeasibleBatchError
from support_service import plan_of_one_chunk

SHAPE = DecoderShape(layers=12, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1024, vocab=1000)
CLUSTER = Hardware("a100", nodes=2, devices_per_node=8)
SHORTAGE = InfeasibleBatchError(0, 2.0, 1.0, "buy more")


def plan_taking(seconds: float) -> ExecutionPlan:
    plan = plan_of_one_chunk([8])
    return dataclasses.replace(plan, estimate=dataclasses.replace(plan.estimate, makespan_s=seconds))


def test_layouts_use_all_devices_divide_heads_and_leave_no_stage_without_a_layer() -> None:
    # pp 1 would need 16 ranks for 8 heads; 16 stages are more than 12 layers
    assert legal_layouts(SHAPE, CLUSTER) == [Layout(2, 8), Layout(4, 4), Layout(8, 2)]


def test_a_model_whose_layers_divide_by_nothing_is_laid_out_unevenly() -> None:
    assert legal_layouts(dataclasses.replace(SHAPE, layers=7), CLUSTER) == [Layout(2, 8), Layout(4, 4)]


def test_every_layout_is_planned_under_a_profile_of_its_own() -> None:
    seen: list[tuple[int, int]] = []

    def solve(profile: Profile) -> ExecutionPlan:
        seen.append((profile.cluster.pp_size, profile.cluster.sp_size))
        return plan_taking(1.0)

    result = try_layout(SHAPE, CLUSTER, Layout(4, 4), solve, attended_tokens=4096.0)

    assert seen == [(4, 4)]
    assert isinstance(result.outcome, ExecutionPlan)


def test_a_layout_that_does_not_fit_is_a_result_and_no_error() -> None:
    def solve(profile: Profile) -> ExecutionPlan:
        raise SHORTAGE

    assert try_layout(SHAPE, CLUSTER, Layout(2, 8), solve, attended_tokens=4096.0) == LayoutResult(
        Layout(2, 8), SHORTAGE
    )


def test_the_layout_with_the_shortest_step_wins() -> None:
    results = [
        LayoutResult(Layout(1, 8), SHORTAGE),
        LayoutResult(Layout(2, 4), plan_taking(3.0)),
        LayoutResult(Layout(4, 2), plan_taking(2.0)),
    ]

    assert fastest(results) == Layout(4, 2)
    assert fastest(results[:1]) is None


@pytest.mark.parametrize("count", [1, 2, 64])
def test_made_up_lengths_are_skewed_within_the_context_and_hold_one_full_sequence(count: int) -> None:
    lengths = synthetic_lengths(32_768, count)

    assert len(lengths) == count
    assert lengths == sorted(lengths)
    assert lengths[0] >= 1
    assert lengths[-1] == 32_768
    assert lengths == synthetic_lengths(32_768, count)


def test_made_up_lengths_have_the_median_of_the_distribution_and_stop_at_the_context() -> None:
    lengths = synthetic_lengths(1_000, 1_001)

    assert lengths[500] == pytest.approx(735, rel=0.01)
    assert max(lengths) == 1_000
