"""The policies for comparison: what is fixed in them stays fixed, and what does not fit says so."""

from collections.abc import Iterable

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.chunk_sizes import chunk_sizes_tokens
from infinipipe_planner.policies.gpipe import order_flush
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute_problem import build_recompute_problem
from infinipipe_planner.scheduling.uniform_recompute import least_uniform_recompute
from infinipipe_planner.solve import solve_plan
from support_planner.batches import github_lengths
from support_planner.chunks import batched_chain, chunk
from support_planner.passes import draw
from support_planner.profiles import llama_profile, round_profile

FIXED = ["seq1f1b", "batch1f1b", "gpipe"]
TIGHT = llama_profile(device_memory_bytes=30e9)
LENGTHS = github_lengths(64, 65_536)


def recomputed_layers(plan: ExecutionPlan) -> set[int]:
    return {
        action.recompute_layer_count
        for pipeline in plan.pipelines
        for actions in pipeline.stages
        for action in actions
        if action.kind is ActionKind.FORWARD
    }


def chunk_tokens(plan: ExecutionPlan) -> Iterable[int]:
    return (chunk.token_count for pipeline in plan.pipelines for chunk in pipeline.chunks)


@pytest.mark.parametrize("policy", FIXED)
def test_every_chunk_recomputes_the_same_number_of_layers(policy: str) -> None:
    plan = solve_plan(LENGTHS, TIGHT, PlanOptions(policy=policy))

    assert len(recomputed_layers(plan)) == 1


def test_seq1f1b_exceeds_its_chunk_size_nowhere_and_cuts_into_equal_slices() -> None:
    plan = solve_plan([1000, 10, 20], round_profile(), PlanOptions(policy="seq1f1b"))

    slices = [piece.length_tokens for p in plan.pipelines for c in p.chunks for piece in c.slices if len(c.slices) == 1]
    assert max(chunk_tokens(plan)) == max(slices)


def test_batch1f1b_cuts_no_sequence() -> None:
    plan = solve_plan(LENGTHS, llama_profile(), PlanOptions(policy="batch1f1b"))

    assert all(piece.start_token == 0 for p in plan.pipelines for c in p.chunks for piece in c.slices)
    assert plan.report.slice_count == 1


def test_gpipe_runs_all_forwards_of_a_flush_before_its_backwards_in_reverse() -> None:
    order = order_flush([chunk((0, 0, 4)), chunk((1, 0, 3)), chunk((2, 0, 2))], pp_size=2)

    assert [draw(stage) for stage in order.stages] == ["F0 F1 F2 B2 B1 B0"] * 2


def test_gpipe_flushes_more_often_where_its_activations_do_not_fit() -> None:
    # Without recompute 4 devices hold 400 / 4 + 20 / 2 bytes a token on the last stage: 1000 tokens do not fit at once.
    profile = round_profile(layers=2, device_memory_bytes=40_000.0)

    plan = solve_plan([100] * 10, profile, PlanOptions(policy="gpipe"))

    assert len(plan.pipelines) > 1


def test_no_recompute_recomputes_nothing_and_full_recompute_everything() -> None:
    plans = [solve_plan(LENGTHS, llama_profile(), PlanOptions(policy=p)) for p in ("no-recompute", "full-recompute")]

    assert [recomputed_layers(plan) for plan in plans] == [{0}, {8}]


def test_the_ablations_without_a_choice_of_recompute_do_not_beat_the_paper_in_tight_memory() -> None:
    paper, none, full = (
        solve_plan(LENGTHS, TIGHT, PlanOptions(policy=p)).estimate.makespan_s
        for p in ("paper", "no-recompute", "full-recompute")
    )

    assert paper <= min(none, full)


@pytest.mark.parametrize("policy", [*FIXED, "no-balance", "no-recompute", "full-recompute"])
def test_a_batch_that_cannot_fit_is_refused_with_the_stage_and_the_bytes(policy: str) -> None:
    profile = llama_profile(device_memory_bytes=5e9)

    with pytest.raises(
        InfeasibleBatchError, match=r"stage \d needs [\d,]+ bytes a device .* [\d,]+ are usable"
    ) as caught:
        solve_plan([65_536], profile, PlanOptions(policy=policy))

    assert caught.value.needed_bytes > caught.value.usable_bytes


def test_uniform_recompute_takes_the_fewest_layers_that_fit() -> None:
    order = order_pipeline([batched_chain((0, 100)), batched_chain((1, 100))], pp_size=2)
    needs = {}
    for memory_bytes in range(8_000, 30_000, 500):
        profile = round_profile(device_memory_bytes=memory_bytes)
        problem = build_recompute_problem(order, CostModel(profile))
        try:
            needs[memory_bytes] = least_uniform_recompute(problem, profile)
        except InfeasibleBatchError:
            continue
        layers = needs[memory_bytes]
        fewer = (layers - 1,) * problem.variable_count
        assert layers == 0 or not all(constraint.holds(fewer) for constraint in problem.constraints)
    assert set(needs.values()) == {0, 1, 2, 3, 4}


def test_chunk_sizes_go_from_one_chunk_a_stage_to_sixty_four() -> None:
    sizes = chunk_sizes_tokens(6400, pp_size=2)

    assert (sizes[0], sizes[-1]) == (3200, 50)
    assert sizes == sorted(sizes, reverse=True)


def test_chunk_sizes_of_a_tiny_batch_are_at_least_one_token() -> None:
    assert chunk_sizes_tokens(3, pp_size=2) == [2, 1]
