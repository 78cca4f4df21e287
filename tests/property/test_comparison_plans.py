"""Every policy gives valid plans, whatever the batch, and their time is divided without a rest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infinipipe_contract.validate import validate
from infinipipe_planner.baselines.breakdown import break_down_plan
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.registry import POLICIES
from infinipipe_planner.solve import solve_plan
from support_contract import with_replicas
from support_planner.profiles import llama_profile

LENGTHS = st.lists(st.one_of(st.integers(1, 2_000), st.integers(1, 40_000)), min_size=1, max_size=24)
ADDED = sorted(set(POLICIES) - {"paper", "search"})


@pytest.mark.parametrize("policy", ADDED)
@settings(deadline=None, max_examples=12)
@given(lengths=LENGTHS, pp_size=st.sampled_from([1, 2, 4]), memory_bytes=st.sampled_from([40e9, 80e9]))
def test_plans_are_valid_for_any_batch(policy: str, lengths: list[int], pp_size: int, memory_bytes: float) -> None:
    profile = llama_profile(pp_size=pp_size, device_memory_bytes=memory_bytes)

    plan = solve_plan(lengths, profile, PlanOptions(policy=policy))

    validate(plan, lengths, profile)
    assert plan.policy == policy


@settings(deadline=None, max_examples=15)
@given(lengths=LENGTHS, policy=st.sampled_from(["paper", *ADDED]), dp_size=st.integers(1, 2))
def test_the_parts_of_a_plan_add_up_to_its_makespan(lengths: list[int], policy: str, dp_size: int) -> None:
    profile = with_replicas(llama_profile(device_memory_bytes=30e9), dp_size)
    plan = solve_plan(lengths, profile, PlanOptions(policy=policy))

    parts = break_down_plan(plan, profile)

    assert parts.total_s == pytest.approx(plan.estimate.makespan_s)
    assert parts.idle_s == pytest.approx(plan.estimate.bubble_ratio * parts.total_s, abs=1e-9)
    busy_s = sum(stage.busy_s for stage in plan.estimate.stages) / len(plan.estimate.stages)
    assert parts.recompute_s == pytest.approx(plan.estimate.recompute_ratio * busy_s, abs=1e-12)
