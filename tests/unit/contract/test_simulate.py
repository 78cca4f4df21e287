"""The replay agrees with schedules worked out by hand."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, Chunk, ChunkKind, Slice, chunk_kinds, kept_chunks
from infinipipe_contract.simulate import simulate
from support_contract import build_plan, picture_pipeline, small_profile, two_stage_plan


def test_one_stage_runs_its_actions_back_to_back() -> None:
    profile = small_profile(pp_size=1, sp_size=1)
    pipeline = picture_pipeline([[Slice(0, 0, 2)], [Slice(1, 0, 3)]], "F0 F1 B0 B1")
    timeline = simulate([pipeline], profile)
    # Eq. 1 with one device: n^2 + 2 n + 3 forward, twice that backward.
    assert [(span.start_s, span.end_s) for span in timeline.stages[0].spans] == [(0, 11), (11, 29), (29, 51), (51, 87)]
    assert timeline.makespan_s == 87


def test_a_stage_waits_for_the_message_of_its_neighbour() -> None:
    profile = small_profile(pp_size=2, sp_size=1)
    pipeline = picture_pipeline([[Slice(0, 0, 2)]], "F0 B0", "F0 B0")
    costs, chunk = CostModel(profile), Chunk((Slice(0, 0, 2),))
    forward_s, backward_s, transfer_s = costs.forward_s(chunk, 0), costs.backward_s(chunk, 0, 0), costs.transfer_s(2)
    timeline = simulate([pipeline], profile)
    first, second = timeline.stages[0].spans, timeline.stages[1].spans
    assert second[0].start_s == pytest.approx(forward_s + transfer_s)
    assert second[1].start_s == pytest.approx(2 * forward_s + transfer_s)
    assert first[1].start_s == pytest.approx(2 * forward_s + 2 * transfer_s + backward_s)
    assert timeline.makespan_s == pytest.approx(2 * (forward_s + transfer_s + backward_s))


def test_pipelines_follow_each_other_without_a_barrier() -> None:
    profile = small_profile(pp_size=2, sp_size=1)
    one = picture_pipeline([[Slice(0, 0, 2)]], "F0 B0", "F0 B0")
    two = picture_pipeline([[Slice(1, 0, 2)]], "F0 B0", "F0 B0")
    alone_s = simulate([one], profile).makespan_s
    timeline = simulate([one, two], profile)
    # Stage 1 is done with the first pipeline while stage 0 still runs its backward pass.
    assert timeline.stages[1].spans[2].start_s > timeline.stages[1].spans[1].end_s
    assert timeline.makespan_s == pytest.approx(2 * alone_s)


def test_memory_rises_with_each_forward_and_falls_with_each_backward() -> None:
    profile, _, plan = two_stage_plan()
    timeline = simulate(plan.pipelines, profile)
    stage = timeline.stages[0]
    states = profile.memory.model_state_bytes[0]
    assert stage.memory_bytes[-1] == pytest.approx(states)
    assert stage.peak_bytes == stage.memory_bytes[2] == max(stage.memory_bytes)
    costs = CostModel(profile)
    held = [
        costs.activation_bytes(8, 0, keeps_kv=True),
        costs.activation_bytes(7, 0, keeps_kv=False, recompute_layer_count=1),
        costs.activation_bytes(5, 0, keeps_kv=False),
    ]
    assert stage.peak_bytes == pytest.approx(states + sum(held))


def test_recompute_lengthens_the_backward_pass_only() -> None:
    profile, lengths, plan = two_stage_plan()
    chunks = [chunk.slices for chunk in plan.pipelines[0].chunks]
    without = build_plan(profile, lengths, picture_pipeline(chunks, "F0 F1 F2 B1 B0 B2", "F0 F1 B1 F2 B0 B2"))
    longer, shorter = plan.estimate, without.estimate
    costs = CostModel(profile)
    chunk = plan.pipelines[0].chunks[1]
    assert longer.stages[0].busy_s - shorter.stages[0].busy_s == pytest.approx(costs.forward_s(chunk, 0) / 2)
    assert longer.stages[1].busy_s - shorter.stages[1].busy_s == pytest.approx(costs.forward_s(chunk, 1))
    assert longer.stages[1].recompute_s == pytest.approx(costs.forward_s(chunk, 1))
    assert longer.recompute_ratio > 0 == shorter.recompute_ratio


def test_a_parameter_gather_longer_than_the_compute_sets_the_pace() -> None:
    profile = dataclasses.replace(small_profile(pp_size=1, sp_size=1), param_gather_s=(100.0,))
    timeline = simulate([picture_pipeline([[Slice(0, 0, 2)]], "F0 B0")], profile)
    assert [span.end_s for span in timeline.stages[0].spans] == [100.0, 300.0]


def test_the_bubble_is_the_idle_share_of_all_stages() -> None:
    profile = small_profile(pp_size=2, sp_size=1)
    plan = build_plan(profile, [2], picture_pipeline([[Slice(0, 0, 2)]], "F0 B0", "F0 B0"))
    busy_s = sum(stage.busy_s for stage in plan.estimate.stages)
    assert plan.estimate.bubble_ratio == pytest.approx(1 - busy_s / (2 * plan.estimate.makespan_s))


def test_chunk_kinds_and_kept_chunks_follow_from_the_slices() -> None:
    chunks = [
        Chunk((Slice(0, 0, 8),)),
        Chunk((Slice(0, 8, 8),)),
        Chunk((Slice(0, 16, 4), Slice(1, 0, 3))),
        Chunk((Slice(2, 0, 5), Slice(3, 0, 1))),
    ]
    assert chunk_kinds(chunks) == [ChunkKind.SPLIT, ChunkKind.SPLIT, ChunkKind.HYBRID, ChunkKind.BATCHED]
    assert kept_chunks(chunks) == {0, 1}


def test_every_action_of_the_plan_is_replayed_once() -> None:
    profile, _, plan = two_stage_plan()
    timeline = simulate(plan.pipelines, profile)
    for stage, actions in zip(timeline.stages, plan.pipelines[0].stages, strict=True):
        replayed = [(span.kind, span.chunk_id.chunk_index) for span in stage.spans]
        assert replayed == [(action.kind, action.chunk_index) for action in actions]
        assert all(span.kind is ActionKind.BACKWARD for span in stage.spans if span.recompute_s)
