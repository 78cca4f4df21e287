"""Plans leave room for what a pass needs while it runs, where the profile tells it."""

import dataclasses

import pytest

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from infinipipe_contract.working_memory import working_memory
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_planner.profiles import llama_profile

LLAMA_7B = DecoderShape(layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=128256)
LONG_AND_SHORT = [131_072, 65_536, 30_000, 9_000, *[2_000] * 20]


def _working(profile: Profile) -> Profile:
    working = working_memory(LLAMA_7B, 2, profile.cluster.sp_size)
    return dataclasses.replace(profile, memory=dataclasses.replace(profile.memory, working=working))


@pytest.mark.parametrize("policy", ["paper", "search"])
@pytest.mark.parametrize("device_memory_bytes", [20e9, 26e9, 80e9])
def test_a_plan_fits_with_all_that_its_passes_need_while_they_run(policy: str, device_memory_bytes: float) -> None:
    profile = _working(llama_profile(device_memory_bytes=device_memory_bytes))

    plan = solve_plan(LONG_AND_SHORT, profile, PlanOptions(policy=policy, budget_s=0.05 if policy == "search" else 0.0))

    peaks = [stage.peak_bytes for stage in simulate(plan.pipelines, profile).stages]
    assert max(peaks) <= profile.usable_memory_bytes
    validate(plan, LONG_AND_SHORT, profile)


def test_a_plan_of_the_paper_may_not_fit_once_passes_are_counted() -> None:
    paper = llama_profile(device_memory_bytes=16e9)

    plan = solve_plan(LONG_AND_SHORT, paper, PlanOptions(policy="paper"))

    peaks = [stage.peak_bytes for stage in simulate(plan.pipelines, _working(paper)).stages]
    assert max(peaks) > paper.usable_memory_bytes


def test_a_batch_whose_passes_alone_do_not_fit_is_refused_with_what_they_need() -> None:
    paper = llama_profile(device_memory_bytes=8.2e9)
    solve_plan([32_768], paper, PlanOptions(policy="paper"))

    with pytest.raises(InfeasibleBatchError) as refused:
        solve_plan([32_768], _working(paper), PlanOptions(policy="paper"))

    assert refused.value.needed_bytes > paper.usable_memory_bytes
