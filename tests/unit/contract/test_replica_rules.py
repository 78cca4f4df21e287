"""Replicas of the pipeline: they run side by side, every rule holds in each, one replica changes nothing."""

import dataclasses
import json

import pytest

from infinipipe.planner.v1 import plan_pb2
from infinipipe_contract.codec import (
    plan_from_json,
    plan_from_proto,
    plan_to_json,
    plan_to_proto,
    profile_from_json,
    profile_to_json,
)
from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.errors import InvalidPlanError, InvalidProfileError
from infinipipe_contract.model_memory import DecoderShape, model_state_bytes, parameter_count
from infinipipe_contract.plan import ChunkId, Slice, plan_digest
from infinipipe_contract.schedule import lower_stage
from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from support_contract import (
    build_plan,
    picture_pipeline,
    replica_plan,
    small_profile,
    two_stage_plan,
    with_replicas,
)


def test_a_plan_of_three_replicas_one_of_them_empty_is_valid_and_survives_the_wire_and_json() -> None:
    profile, lengths, plan = replica_plan()

    validate(plan, lengths, profile)
    assert plan_from_proto(plan_pb2.ExecutionPlan.FromString(plan_to_proto(plan).SerializeToString())) == plan
    assert plan_from_json(plan_to_json(plan)) == plan
    assert profile_from_json(profile_to_json(profile)) == profile


def test_one_replica_is_written_and_hashed_as_if_there_were_no_replicas() -> None:
    profile, _, plan = two_stage_plan()

    assert "replica" not in plan_to_json(plan)
    assert "dp_size" not in profile_to_json(profile)
    assert plan.digest == "ae6b8837fafecd947f78e31876173476ea79feeb387e1ac133b5b292d4902c5d"


def test_the_replica_that_runs_a_pipeline_is_part_of_the_digest() -> None:
    _, _, plan = replica_plan()
    first, second = plan.pipelines
    moved = dataclasses.replace(plan, pipelines=(first, dataclasses.replace(second, replica_index=2)))

    assert plan_digest(moved) != plan_digest(plan)


def test_replicas_run_side_by_side_and_the_slowest_one_sets_the_makespan() -> None:
    profile, _, plan = replica_plan()
    alone = with_replicas(profile, 1)
    makespans_s = [simulate([dataclasses.replace(p, replica_index=0)], alone).makespan_s for p in plan.pipelines]

    timeline = simulate(plan.pipelines, profile)

    places = [(stage.replica_index, stage.stage_index) for stage in timeline.stages]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert timeline.makespan_s == max(makespans_s)
    assert [max(s.spans[-1].end_s for s in timeline.stages[i : i + 2]) for i in (0, 2)] == makespans_s
    assert {span.chunk_id.pipeline_index for span in timeline.stages[2].spans} == {1}


def test_an_empty_replica_holds_its_model_states_and_counts_as_idle() -> None:
    profile, _, plan = replica_plan()
    empty = simulate(plan.pipelines, profile).stages[4]
    busy_s = sum(stage.busy_s for stage in plan.estimate.stages)

    assert (empty.spans, empty.peak_bytes) == ((), profile.memory.model_state_bytes[0])
    assert plan.estimate.bubble_ratio == pytest.approx(1 - busy_s / (6 * plan.estimate.makespan_s))
    assert plan.replica_count == 3


def test_the_ideal_time_spreads_the_work_over_all_replicas() -> None:
    profile = small_profile()

    assert CostModel(with_replicas(profile, 4)).ideal_s(100, 10) == pytest.approx(
        CostModel(profile).ideal_s(100, 10) / 4
    )


def test_a_stage_is_lowered_to_the_pipelines_of_its_replica_with_their_index_in_the_plan() -> None:
    _, _, plan = replica_plan()

    assert {one.chunk_id.pipeline_index for one in lower_stage(plan, 0)} == {0}
    assert {one.chunk_id for one in lower_stage(plan, 1, 1)} == {ChunkId(1, 0), ChunkId(1, 1)}
    assert lower_stage(plan, 0, 2) == []


@pytest.mark.parametrize("replica_index", [-1, 3])
def test_a_pipeline_of_a_replica_that_does_not_exist_is_refused(replica_index: int) -> None:
    profile, lengths, plan = replica_plan()
    first, second = plan.pipelines
    moved = dataclasses.replace(plan, pipelines=(first, dataclasses.replace(second, replica_index=replica_index)))
    moved = dataclasses.replace(moved, digest=plan_digest(moved))

    with pytest.raises(
        InvalidPlanError, match=rf"pipeline 1 is of replica {replica_index}, the profile has 3 \(cluster.dp"
    ):
        validate(moved, lengths, profile)


def test_a_sequence_that_two_replicas_run_is_refused() -> None:
    profile = with_replicas(small_profile(), 2)
    pipeline = picture_pipeline([[Slice(0, 0, 4)]], "F0 B0", "F0 B0")
    plan = build_plan(profile, [4], pipeline, dataclasses.replace(pipeline, replica_index=1))

    with pytest.raises(InvalidPlanError, match="sequence 0 is in pipelines 0 and 1"):
        validate(plan, [4], profile)


def test_a_dead_lock_and_a_lack_of_memory_name_the_replica() -> None:
    profile, lengths, plan = replica_plan()
    tight = dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=9000.0))
    crossed = picture_pipeline([[Slice(2, 0, 5)], [Slice(3, 0, 4)]], "F0 B0 F1 B1", "F0 F1 B0 B1")

    with pytest.raises(InvalidPlanError, match="replica 0, stage 1 needs"):
        validate(plan, lengths, tight)
    with pytest.raises(InvalidPlanError, match="deadlock: replica 1, stage 0 waits for ever"):
        simulate([plan.pipelines[0], dataclasses.replace(crossed, replica_index=1)], profile)


def test_a_cluster_without_replicas_is_refused() -> None:
    content = json.loads(profile_to_json(small_profile()))
    content["cluster"]["dp_size"] = 0

    with pytest.raises(InvalidProfileError, match="cluster.dp_size is 0, it must be at least 1"):
        profile_from_json(json.dumps(content))


def test_gradients_that_wait_for_the_end_of_the_step_are_held_whole_by_every_rank() -> None:
    shape = DecoderShape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32)
    parameters = parameter_count(shape)

    assert model_state_bytes(shape, 1, 4, 0) == 16 * parameters / 4
    assert model_state_bytes(shape, 1, 4, 0, shards_gradients=False) == 12 * parameters / 4 + 4 * parameters
    assert model_state_bytes(shape, 1, 1, 0, shards_gradients=False) == model_state_bytes(shape, 1, 1, 0)
