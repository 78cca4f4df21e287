"""What every plan keeps, whatever the batch and the cluster."""

import dataclasses

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from infinipipe_contract.codec import plan_from_json, plan_from_proto, plan_to_json, plan_to_proto
from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ExecutionPlan, kept_chunks, slices_by_sequence
from infinipipe_contract.profile import (
    NO_HEAD,
    Cluster,
    ComputeCost,
    HeadCost,
    LinkCost,
    MemoryCost,
    ModelShape,
    Profile,
    check_profile,
)
from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from infinipipe_planner.cost_model.token_threshold import token_threshold
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_contract import with_replicas

RUNS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def costs_of_compute() -> st.SearchStrategy[ComputeCost]:
    return st.builds(
        ComputeCost,
        alpha1=st.sampled_from([0.0, 1e-9, 1e-6]),
        alpha2=st.sampled_from([1e-5, 1e-3]),
        beta1=st.sampled_from([0.0, 0.01]),
    )


@st.composite
def divisions(draw: st.DrawFn, layers: int, pp_size: int) -> tuple[int, ...] | None:
    """Layers of every stage, however uneven, or none chosen."""
    if draw(st.booleans()):
        return None
    cuts = sorted(draw(st.permutations(range(1, layers)))[: pp_size - 1])
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, layers], strict=True))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    pp_size = draw(st.integers(1, 5))
    layers, hidden = draw(st.integers(pp_size, 6 * pp_size)), draw(st.sampled_from([16, 64]))
    per_stage = st.tuples(*[st.floats(0, 0.01)] * pp_size)
    profile = Profile(
        name="drawn",
        model=ModelShape(
            layers,
            hidden,
            draw(st.sampled_from([hidden, hidden // 4])),
            ffn=4 * hidden,
            vocab=100,
            dtype_bytes=2,
            query_dim=draw(st.sampled_from([None, 2 * hidden])),
        ),
        cluster=Cluster(
            pp_size,
            draw(st.sampled_from([1, 2, 4])),
            device_memory_bytes=1e15,
            usable_memory_ratio=1.0,
        ),
        forward=draw(costs_of_compute()),
        backward=draw(costs_of_compute()),
        all2all=LinkCost(1e9, draw(st.sampled_from([0.0, 1e-4]))),
        p2p=LinkCost(1e8, draw(st.sampled_from([0.0, 1e-3]))),
        param_gather_s=draw(per_stage),
        memory=MemoryCost(
            token_bytes=layers * hidden * draw(st.sampled_from([12.0, 34.0])),
            logits_bytes=draw(st.sampled_from([0.0, 200.0])),
            model_state_bytes=(1e5,) * pp_size,
        ),
        layer_division=draw(divisions(layers, pp_size)),
        head=draw(st.sampled_from([NO_HEAD, HeadCost(1e-4, 2e-4)])),
    )
    check_profile(profile)
    return profile


@st.composite
def cases(draw: st.DrawFn) -> tuple[Profile, list[int]]:
    """A cluster and a batch; memory from far too little to plenty for it."""
    lengths = draw(st.lists(st.one_of(st.integers(1, 60), st.integers(1, 3000)), min_size=1, max_size=24))
    profile = draw(profiles())
    all_tokens_bytes = CostModel(profile).full_activation_bytes(sum(lengths), 0, keeps_kv=False)
    share = draw(st.sampled_from([0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 3.0]))
    memory_bytes = profile.memory.model_state_bytes[0] + share * all_tokens_bytes
    cluster = dataclasses.replace(profile.cluster, device_memory_bytes=memory_bytes)
    return dataclasses.replace(profile, cluster=cluster), lengths


POLICIES = st.sampled_from(["paper", "search"])


def plan_or_skip(lengths: list[int], profile: Profile, options: PlanOptions) -> ExecutionPlan:
    try:
        return solve_plan(lengths, profile, options)
    except InfeasibleBatchError as error:
        assert error.needed_bytes > error.usable_bytes
        assume(False)
        raise


@RUNS
@given(cases(), POLICIES)
def test_a_plan_keeps_every_rule_of_the_validator_and_never_deadlocks(
    case: tuple[Profile, list[int]], policy: str
) -> None:
    profile, lengths = case
    plan = plan_or_skip(lengths, profile, PlanOptions(policy=policy))

    validate(plan, lengths, profile)
    timeline = simulate(plan.pipelines, profile)
    assert timeline.makespan_s >= plan.estimate.ideal_s * (1 - 1e-9)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(cases(), POLICIES, st.integers(2, 4))
def test_a_plan_of_replicas_keeps_every_rule_and_survives_the_wire(
    case: tuple[Profile, list[int]], policy: str, dp_size: int
) -> None:
    profile, lengths = with_replicas(case[0], dp_size), case[1]
    plan = plan_or_skip(lengths, profile, PlanOptions(policy=policy))

    validate(plan, lengths, profile)
    assert plan_from_proto(plan_to_proto(plan)) == plan
    assert plan.estimate.makespan_s >= plan.estimate.ideal_s * (1 - 1e-9)
    assert len({pipeline.replica_index for pipeline in plan.pipelines}) == min(dp_size, len(lengths))


@RUNS
@given(cases(), POLICIES)
def test_every_token_is_planned_once_in_order_and_no_chunk_holds_two_contexts(
    case: tuple[Profile, list[int]], policy: str
) -> None:
    profile, lengths = case
    plan = plan_or_skip(lengths, profile, PlanOptions(policy=policy))

    for sequence_index, length in enumerate(lengths):
        pieces = [
            piece
            for pipeline in plan.pipelines
            for piece, _ in slices_by_sequence(pipeline.chunks).get(sequence_index, [])
        ]
        assert [token for p in pieces for token in range(p.start_token, p.end_token)] == list(range(length))
    for pipeline in plan.pipelines:
        assert all(sum(piece.start_token > 0 for piece in chunk.slices) <= 1 for chunk in pipeline.chunks)


@RUNS
@given(cases(), POLICIES)
def test_memory_stays_within_the_limit_on_every_stage_recomputed_in_bytes(
    case: tuple[Profile, list[int]], policy: str
) -> None:
    profile, lengths = case
    plan = plan_or_skip(lengths, profile, PlanOptions(policy=policy))
    costs = CostModel(profile)

    for pipeline in plan.pipelines:
        kept = kept_chunks(pipeline.chunks)
        for stage_index, actions in enumerate(pipeline.stages):
            held: dict[int, float] = {}
            for action in actions:
                if action.kind is ActionKind.BACKWARD:
                    del held[action.chunk_index]
                    continue
                held[action.chunk_index] = costs.activation_bytes(
                    pipeline.chunks[action.chunk_index].token_count,
                    stage_index,
                    keeps_kv=action.chunk_index in kept,
                    recompute_layer_count=action.recompute_layer_count,
                )
                used_bytes = profile.memory.model_state_bytes[stage_index] + sum(held.values())
                assert used_bytes <= profile.usable_memory_bytes * (1 + 1e-9)


@RUNS
@given(cases(), st.integers(1, 6))
def test_no_packed_chunk_passes_the_token_threshold(case: tuple[Profile, list[int]], max_slice_count: int) -> None:
    profile, lengths = case
    plan = plan_or_skip(lengths, profile, PlanOptions(policy="paper", max_slice_count=max_slice_count))

    limit = token_threshold(profile, plan.report.slice_count)
    packed = [c for pipeline in plan.pipelines for c in pipeline.chunks if len(c.slices) > 1]
    assert all(chunk.token_count <= limit for chunk in packed)


@RUNS
@given(cases(), POLICIES)
def test_a_plan_survives_the_wire_and_the_file(case: tuple[Profile, list[int]], policy: str) -> None:
    profile, lengths = case
    plan = plan_or_skip(lengths, profile, PlanOptions(policy=policy))

    assert plan_from_proto(plan_to_proto(plan)) == plan
    assert plan_from_json(plan_to_json(plan)) == plan


@settings(max_examples=25, deadline=None)
@given(cases())
def test_equal_requests_give_equal_plans(case: tuple[Profile, list[int]]) -> None:
    profile, lengths = case
    first, second = (plan_or_skip(lengths, profile, PlanOptions()) for _ in range(2))

    assert first.pipelines == second.pipelines
    assert first.estimate == second.estimate
    assert first.digest == second.digest


@settings(max_examples=25, deadline=None)
@given(cases())
def test_a_searched_plan_is_never_slower_than_the_papers(case: tuple[Profile, list[int]]) -> None:
    profile, lengths = case
    paper = plan_or_skip(lengths, profile, PlanOptions(policy="paper"))
    searched = solve_plan(lengths, profile, PlanOptions(policy="search"))

    assert searched.estimate.makespan_s <= paper.estimate.makespan_s


@settings(max_examples=25, deadline=None)
@given(cases())
def test_plenty_of_memory_needs_no_recompute_and_one_pipeline(case: tuple[Profile, list[int]]) -> None:
    profile, lengths = case
    plenty = dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=1e15))

    plan = solve_plan(lengths, plenty, PlanOptions(policy="paper"))

    assert len(plan.pipelines) == 1
    assert plan.estimate.recompute_ratio == 0.0
