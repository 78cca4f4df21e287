"""What binds a batch, and what a change would buy: found by planning again."""

import dataclasses
from collections.abc import Sequence

import pytest

from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.working_memory import WorkingMemory
from infinipipe_planner.errors import InvalidLengthsError
from infinipipe_planner.explain import MORE_MEMORY_BYTES, Explanation, WhatIf, explain_batch, memory_moments
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile, small_head_profile

LENGTHS = github_lengths(128, 131_072)
PAPER = PlanOptions(policy="paper")
TIGHT = llama_profile(device_memory_bytes=26e9)


WORKING = WorkingMemory(
    chunk_token_bytes=528,
    forward_token_bytes=16_384,
    recompute_token_bytes=82_432,
    backward_token_bytes=52_224,
    context_token_bytes=139_264,
    kv_gradient_bytes=4,
)


def with_memory(profile: Profile, memory_bytes: float) -> Profile:
    return dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=memory_bytes))


@pytest.fixture(scope="module")
def plan() -> ExecutionPlan:
    return solve_plan(LENGTHS, TIGHT, PAPER)


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain_batch(LENGTHS, TIGHT, PAPER)


def what_if(found: Explanation, start: str) -> WhatIf:
    (only,) = [one for one in found.what_ifs if one.change.startswith(start)]
    return only


def test_every_stage_is_shown_at_its_peak_with_all_it_holds(plan: ExecutionPlan, found: Explanation) -> None:
    peaks = [stage.peak_bytes for stage in simulate(plan.pipelines, TIGHT).stages]

    assert [moment.used_bytes for moment in found.moments] == peaks
    for moment in found.moments:
        held = sum(chunk.held_bytes for chunk in moment.chunks)
        assert moment.state_bytes + held == pytest.approx(moment.used_bytes)
        assert moment.usable_bytes == TIGHT.usable_memory_bytes
        assert list(moment.chunks) == sorted(moment.chunks, key=lambda chunk: -chunk.held_bytes)
        assert moment.kind is ActionKind.FORWARD
        assert moment.chunk_id in {chunk.chunk_id for chunk in moment.chunks}


def test_the_memory_within_a_pass_counts_where_the_profile_tells_it() -> None:
    profile = dataclasses.replace(TIGHT, memory=dataclasses.replace(TIGHT.memory, working=WORKING))
    pipelines = solve_plan(LENGTHS, profile, PAPER).pipelines
    stages = simulate(pipelines, profile).stages

    moments = memory_moments(pipelines, profile)

    assert [moment.used_bytes for moment in moments] == [stage.peak_bytes for stage in stages]
    assert all(stage.peak_bytes > max(stage.memory_bytes) for stage in stages)
    assert ActionKind.BACKWARD in {moment.kind for moment in moments}
    for moment in moments:
        assert moment.chunk_id in {chunk.chunk_id for chunk in moment.chunks}


def test_the_tightest_stage_is_the_one_with_the_least_to_spare(found: Explanation) -> None:
    assert found.tightest is not None
    assert found.tightest.spare_bytes == min(moment.spare_bytes for moment in found.moments)
    assert found.memory_binds


def test_one_more_gigabyte_buys_what_a_plan_with_it_buys(found: Explanation) -> None:
    richer = solve_plan(LENGTHS, with_memory(TIGHT, 26e9 + MORE_MEMORY_BYTES), PAPER)

    bought = what_if(found, "+1 GB")
    assert bought.makespan_s == richer.estimate.makespan_s
    assert f"{abs(richer.estimate.makespan_s - found.makespan_s):.3f} s" in bought.result


def test_one_more_slice_buys_what_the_candidate_with_it_takes(plan: ExecutionPlan, found: Explanation) -> None:
    count = plan.report.slice_count + 1
    richer = solve_plan(LENGTHS, TIGHT, dataclasses.replace(PAPER, max_slice_count=count))
    (candidate,) = [c for c in richer.report.candidates if c.slice_count == count]

    assert what_if(found, f"+1 slice ({count})").makespan_s == candidate.makespan_s


def test_one_more_recomputed_layer_frees_bytes_where_memory_is_tightest(found: Explanation) -> None:
    bought = what_if(found, "+1 recomputed layer")

    assert found.tightest is not None
    assert f"free on stage {found.tightest.stage_index}" in bought.result
    assert bought.makespan_s >= found.makespan_s


def test_memory_does_not_bind_where_there_is_plenty() -> None:
    found = explain_batch([4_096] * 16, llama_profile(), PAPER)

    assert not found.memory_binds
    assert what_if(found, "+1 GB").result == "the same time"


def test_a_batch_that_does_not_fit_is_explained_by_the_least_memory_that_fits() -> None:
    short = llama_profile(device_memory_bytes=12e9)

    found = explain_batch(LENGTHS, short, PAPER)

    assert "the batch does not fit in memory: stage" in found.shortage
    assert found.device_memory_bytes > 12e9
    assert found.moments == memory_moments(
        solve_plan(LENGTHS, with_memory(short, found.device_memory_bytes), PAPER).pipelines,
        with_memory(short, found.device_memory_bytes),
    )
    assert "still lacks" in what_if(found, "+1 GB").result


def test_a_gigabyte_that_is_enough_says_so() -> None:
    least = explain_batch(LENGTHS, llama_profile(device_memory_bytes=12e9), PAPER).device_memory_bytes

    found = explain_batch(LENGTHS, llama_profile(device_memory_bytes=least - 0.9e9), PAPER)

    assert "the batch fits, in " in what_if(found, "+1 GB").result


def test_a_limit_on_slices_that_is_in_the_way_is_lifted_by_one() -> None:
    options = PlanOptions(policy="paper", max_slice_count=3)

    found = explain_batch([131_072] * 4, small_head_profile(device_memory_bytes=7.5e9), options)

    assert what_if(found, "+1 slice (4)").result.startswith(("not enough: stage", "the batch fits"))


@pytest.mark.parametrize("lengths", [[1], [2, 1]])
def test_tiny_batches_are_explained(lengths: Sequence[int]) -> None:
    found = explain_batch(lengths, llama_profile(), PAPER)

    assert found.makespan_s > 0
    assert len(found.moments) == 4


def test_lengths_that_cannot_be_planned_are_refused() -> None:
    with pytest.raises(InvalidLengthsError):
        explain_batch([0], llama_profile(), PAPER)
