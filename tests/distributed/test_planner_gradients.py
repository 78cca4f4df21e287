"""Loss and every gradient equal the reference under plans of the real planner."""

import pytest

from infinipipe_contract.plan import ChunkKind, ExecutionPlan, chunk_kinds
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_executor.groups import GroupPool
from support_executor.plans import make_batch
from support_executor.profiles import make_profile
from support_executor.proof import prove
from support_executor.reference import TINY

SKEWED, EVEN, LONE = (90, 7, 1, 33, 12, 20, 5), (40, 40, 40, 9, 9, 9, 9, 9), (120, 3, 2, 1)
ONE_OF_MANY = (120, *(20,) * 20)  # cheaper in two pipelines

CASES = [
    # lengths, pp_size, sp_size, bytes for activations
    (SKEWED, 1, 2, 3e5),
    (SKEWED, 2, 1, 3e5),
    (SKEWED, 2, 2, 1e12),
    (SKEWED, 2, 2, 1.5e5),
    (SKEWED, 4, 1, 3e5),
    (SKEWED, 4, 2, 1e5),
    (EVEN, 1, 1, 1e5),
    (EVEN, 2, 1, 1e12),
    (EVEN, 2, 1, 1.5e5),
    (EVEN, 4, 1, 1e5),
    (EVEN, 4, 2, 7e4),
    (LONE, 2, 2, 1.5e5),
    (LONE, 4, 1, 1e12),
    (LONE, 4, 2, 1.5e5),
    (ONE_OF_MANY, 2, 2, 1.5e5),
    (ONE_OF_MANY, 4, 1, 3e5),
]


def plan_case(lengths: tuple[int, ...], pp_size: int, sp_size: int, activation_bytes: float) -> ExecutionPlan:
    profile = make_profile(TINY, pp_size, sp_size, activation_bytes=activation_bytes)
    return solve_plan(lengths, profile, PlanOptions(policy="paper"))


@pytest.mark.parametrize(("lengths", "pp_size", "sp_size", "activation_bytes"), CASES)
def test_loss_and_gradients_equal_one_sequence_at_a_time(
    groups: GroupPool, lengths: tuple[int, ...], pp_size: int, sp_size: int, activation_bytes: float
) -> None:
    plan = plan_case(lengths, pp_size, sp_size, activation_bytes)

    prove(groups, plan, make_batch(lengths), sp_size)


def test_the_cases_hold_all_kinds_of_chunk_and_recompute_from_none_to_all() -> None:
    plans = [plan_case(*case) for case in CASES]

    kinds = {kind for plan in plans for pipeline in plan.pipelines for kind in chunk_kinds(pipeline.chunks)}
    layer_counts = {
        action.recompute_layer_count * plan.stage_count / TINY.layers
        for plan in plans
        for pipeline in plan.pipelines
        for actions in pipeline.stages
        for action in actions
    }
    assert kinds == set(ChunkKind)
    assert {0.0, 0.5, 1.0} <= layer_counts
    assert len({plan.report.slice_count for plan in plans}) >= 3
    assert {len(plan.pipelines) for plan in plans} >= {1, 2}
