"""Every plan fits in exact arithmetic: bytes counted as fractions, not as the floats that planned them."""

import dataclasses
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from infinipipe_contract.plan import ActionKind, Pipeline, kept_chunks
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_planner.profiles import llama_profile

# Free memory is a difference of floats of 1e10, which are a millionth of a byte apart.
FLOAT_SLACK_BYTES = Fraction(1, 1000)


def exact_peak_bytes(pipeline: Pipeline, profile: Profile, stage_index: int) -> Fraction:
    """Eqs. 5 to 10 in fractions: the most that one device of a stage holds."""
    model, memory, cluster = profile.model, profile.memory, profile.cluster
    devices, sp_size = cluster.pp_size * cluster.sp_size, cluster.sp_size
    kept = kept_chunks(pipeline.chunks)
    live = peak = Fraction(memory.model_state_bytes[stage_index])
    held: dict[int, Fraction] = {}
    for action in pipeline.stages[stage_index]:
        if action.kind is ActionKind.BACKWARD:
            live -= held[action.chunk_index]
            continue
        is_kept = action.chunk_index in kept
        full = Fraction(memory.token_bytes) / devices
        full += Fraction(2 * model.dtype_bytes * model.layers * model.kv_dim, devices) if is_kept else 0
        full += Fraction(memory.logits_bytes) / sp_size if stage_index == cluster.pp_size - 1 else 0
        saved = Fraction(memory.token_bytes) / (model.layers * sp_size)
        saved -= Fraction(model.dtype_bytes * (model.hidden + (2 * model.kv_dim if is_kept else 0)), sp_size)
        tokens = pipeline.chunks[action.chunk_index].token_count
        held[action.chunk_index] = tokens * (full - action.recompute_layer_count * saved)
        live += held[action.chunk_index]
        peak = max(peak, live)
    return peak


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 131_072), min_size=1, max_size=12),
    st.floats(6e9, 30e9),
    st.floats(3e6, 5e6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["paper", "search"]),
)
def test_no_stage_of_a_plan_holds_more_than_it_may(
    lengths: list[int], device_memory_bytes: float, token_bytes: float, pp_size: int, policy: str
) -> None:
    profile = llama_profile(pp_size=pp_size, device_memory_bytes=device_memory_bytes)
    profile = dataclasses.replace(profile, memory=dataclasses.replace(profile.memory, token_bytes=token_bytes))
    try:
        plan = solve_plan(lengths, profile, PlanOptions(policy=policy, budget_s=0.05 if policy == "search" else 0.0))
    except InfeasibleBatchError:
        return

    usable = Fraction(profile.usable_memory_bytes)
    for pipeline in plan.pipelines:
        for stage_index in range(pp_size):
            assert exact_peak_bytes(pipeline, profile, stage_index) <= usable + FLOAT_SLACK_BYTES
