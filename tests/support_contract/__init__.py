"""Small profiles and plans for tests of the contract."""

import dataclasses
from collections.abc import Sequence

from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
    StageEstimate,
    default_target_token_count,
    plan_digest,
)
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_contract.simulate import estimate_plan


def small_profile(pp_size: int = 2, sp_size: int = 2, *, device_memory_bytes: float = 1e9) -> Profile:
    """A profile whose numbers are easy to check by hand: hidden 8, 4 layers, one second per token pair and device."""
    return Profile(
        name="small",
        model=ModelShape(layers=4, hidden=8, kv_dim=4, ffn=16, vocab=32, dtype_bytes=2),
        cluster=Cluster(pp_size, sp_size, device_memory_bytes, usable_memory_ratio=0.5),
        forward=ComputeCost(alpha1=1.0, alpha2=2.0, beta1=3.0),
        backward=ComputeCost(alpha1=2.0, alpha2=4.0, beta1=6.0),
        all2all=LinkCost(bandwidth_bytes_per_s=100.0, latency_s=0.5),
        p2p=LinkCost(bandwidth_bytes_per_s=50.0, latency_s=0.25),
        param_gather_s=(0.0,) * pp_size,
        memory=MemoryCost(token_bytes=800.0, logits_bytes=64.0, model_state_bytes=(1000.0,) * pp_size),
    )


def picture_pipeline(chunks: Sequence[Sequence[Slice]], *stages: str) -> Pipeline:
    """Build a pipeline from pictures such as ``"F0r1 F1 B1 B0"``, one a stage."""
    return Pipeline(tuple(Chunk(tuple(slices)) for slices in chunks), tuple(picture_stage(stage) for stage in stages))


def picture_stage(picture: str) -> tuple[Action, ...]:
    """Read the actions of one stage from a picture; a recompute count stands on the forward action."""
    actions = []
    for word in picture.split():
        index, _, layers = word[1:].partition("r")
        actions.append(Action(ActionKind(word[0]), int(index), int(layers or 0)))
    return tuple(actions)


def build_plan(profile: Profile, lengths: Sequence[int], *pipelines: Pipeline) -> ExecutionPlan:
    """Wrap pipelines into a plan with a true estimate and digest."""
    plan = ExecutionPlan(
        job="job",
        generation=1,
        step=3,
        policy="paper",
        pipelines=pipelines,
        target_token_count=default_target_token_count(lengths),
        estimate=estimate_plan(pipelines, profile),
        report=SolveReport(SolveOutcome.OPTIMAL, solve_s=0.5, slice_count=2),
    )
    return dataclasses.replace(plan, digest=plan_digest(plan))


def two_stage_plan() -> tuple[Profile, list[int], ExecutionPlan]:
    """One long sequence in a split and a hybrid chunk, two short ones, on two stages; recompute on one chunk."""
    lengths = [12, 3, 5]
    pipeline = picture_pipeline(
        [[Slice(0, 0, 8)], [Slice(0, 8, 4), Slice(1, 0, 3)], [Slice(2, 0, 5)]],
        "F0 F1r1 F2 B1 B0 B2",
        "F0 F1r2 B1 F2 B0 B2",
    )
    profile = small_profile()
    return profile, lengths, build_plan(profile, lengths, pipeline)


def four_stage_plan() -> tuple[Profile, list[int], ExecutionPlan]:
    """Six chunks on four stages, one forward and one backward in turn: a sequence in three, short ones in others."""
    lengths = [20, 3, 5, 4, 6, 2]
    pipeline = picture_pipeline(
        [
            [Slice(0, 0, 8)],
            [Slice(0, 8, 8)],
            [Slice(0, 16, 4), Slice(1, 0, 3)],
            [Slice(2, 0, 5)],
            [Slice(3, 0, 4), Slice(5, 0, 2)],
            [Slice(4, 0, 6)],
        ],
        "F0r1 F1r1 F2 F3 F4 F5 B2 B1 B0 B3 B4 B5",
        "F0r1 F1 F2 F3 F4 B2 F5 B1 B0 B3 B4 B5",
        "F0 F1 F2 F3 B2 F4 B1 F5 B0 B3 B4 B5",
        "F0 F1 F2 B2 F3 B1 F4 B0 F5 B3 B4 B5",
    )
    profile = small_profile(4, 1)
    return profile, lengths, build_plan(profile, lengths, pipeline)


def replica_plan() -> tuple[Profile, list[int], ExecutionPlan]:
    """Three replicas of two stages: two chunks of a sequence and a hybrid one, two whole sequences, nothing."""
    lengths = [12, 3, 5, 4]
    profile = with_replicas(small_profile(), 3)
    first = picture_pipeline([[Slice(0, 0, 8)], [Slice(0, 8, 4), Slice(1, 0, 3)]], "F0 F1r1 B1 B0", "F0 F1 B1 B0")
    second = picture_pipeline([[Slice(2, 0, 5)], [Slice(3, 0, 4)]], "F0 F1 B0 B1", "F0 B0 F1 B1")
    return profile, lengths, build_plan(profile, lengths, first, dataclasses.replace(second, replica_index=1))


def with_replicas(profile: Profile, dp_size: int) -> Profile:
    """Let the cluster of a profile have several replicas of the pipeline."""
    return dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, dp_size=dp_size))


def without_estimate(plan: ExecutionPlan) -> ExecutionPlan:
    """Blank the estimate of a plan that cannot be replayed."""
    blank = Estimate(0.0, 0.0, 0.0, 0.0, (StageEstimate(0.0, 0.0, 0.0),) * plan.stage_count)
    return dataclasses.replace(plan, estimate=blank)
