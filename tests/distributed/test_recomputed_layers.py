"""The layers that are recomputed are those that the plan names, chunk by chunk and stage by stage."""

import dataclasses
from collections import Counter

import pytest

from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.profiles import make_profile
from support_executor.ranks import LayerRun, count_layer_runs
from support_executor.reference import TINY

PP_SIZE = 2
SIX_LAYERS = dataclasses.replace(TINY, layers=6)
LAYERS_PER_STAGE = SIX_LAYERS.layers // PP_SIZE


def planned_runs(plan: ExecutionPlan, stage_index: int) -> Counter[LayerRun]:
    """Every layer once in the forward pass, and the first ones again in the backward pass: as many as the plan says."""
    runs: Counter[LayerRun] = Counter()
    for pipeline in plan.pipelines:
        for action in pipeline.stages[stage_index]:
            if action.kind is ActionKind.FORWARD:
                planned = pipeline.chunks[action.chunk_index]
                for layer in range(LAYERS_PER_STAGE):
                    runs[LayerRun(ActionKind.FORWARD, planned, layer)] += 1
                for layer in range(action.recompute_layer_count):
                    runs[LayerRun(ActionKind.BACKWARD, planned, layer)] += 1
    return runs


def recompute_counts(plan: ExecutionPlan) -> set[tuple[int, ...]]:
    """The recompute counts of every chunk, stage by stage."""
    return {
        tuple(
            next(a.recompute_layer_count for a in actions if a.kind is ActionKind.FORWARD and a.chunk_index == index)
            for actions in pipeline.stages
        )
        for pipeline in plan.pipelines
        for index in range(len(pipeline.chunks))
    }


def check_layer_runs(groups: GroupPool, plan: ExecutionPlan, lengths_tokens: list[int], sp_size: int) -> None:
    batch = make_batch(lengths_tokens)
    seen = groups.run(PP_SIZE * sp_size, count_layer_runs, SIX_LAYERS, PP_SIZE, sp_size, plan, batch)
    assert [stage_index for stage_index, _ in seen] == [rank // sp_size for rank in range(PP_SIZE * sp_size)]
    for stage_index, runs in seen:
        assert runs == planned_runs(plan, stage_index), f"stage {stage_index}"


@pytest.mark.parametrize("sp_size", [1, 2])
def test_a_table_by_hand_with_every_count_on_either_stage_is_what_runs(groups: GroupPool, sp_size: int) -> None:
    table = [(0, 3), (3, 0), (1, 2), (2, 1), (0, 0), (3, 3)]
    lengths = [31, 12, 9, 5]
    first, second, third = cut(0, 12, 10, 9)
    chunks = [chunk(first), chunk(second), chunk(third, *cut(2, 9)), *map(chunk, cut(1, 5, 7)), chunk(*cut(3, 5))]
    plan = make_plan([chunks], PP_SIZE, make_batch(lengths), lambda stage, index: table[index][stage])

    check_layer_runs(groups, plan, lengths, sp_size)

    assert recompute_counts(plan) == set(table)


@pytest.mark.parametrize("sp_size", [1, 2])
def test_the_table_of_a_planner_short_of_memory_is_what_runs(groups: GroupPool, sp_size: int) -> None:
    lengths = [90, 7, 1, 33, 12, 20, 5]
    profile = make_profile(SIX_LAYERS, PP_SIZE, sp_size, activation_bytes=3e5 / sp_size)
    plan = solve_plan(lengths, profile, PlanOptions(policy="paper"))

    check_layer_runs(groups, plan, lengths, sp_size)

    assert len(recompute_counts(plan)) >= 3, "the counts differ from chunk to chunk"
