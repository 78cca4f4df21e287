"""What binds a batch: where memory is tightest, what lies there, and what a little more of something would buy.

Entry point: ``explain_batch``. What a change would buy is found by planning again with the changed number, never
guessed; a batch that does not fit is explained by the plan it would have with just enough memory.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ChunkId, ExecutionPlan, Pipeline, kept_chunks
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import StageTimeline, simulate
from infinipipe_contract.text import format_bytes, name_stage
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

MORE_MEMORY_BYTES = 1e9
"""The gigabyte of "one more GB"."""

_MEMORY_TRIES = 8
"""More memory allows larger chunks, which need more memory: it takes a few steps to catch up."""

_MORE_MEMORY = f"+{MORE_MEMORY_BYTES / 1e9:g} GB a device"

_SAME_RATIO = 5e-5
"""Changes of the time below this share are none: they would show as 0.0 %."""

Solve = Callable[[Profile, PlanOptions], ExecutionPlan]


@dataclass(frozen=True, slots=True)
class ChunkInFlight:
    """A chunk that a stage holds.

    Attributes:
        chunk_id: Which one.
        token_count: Its tokens.
        recompute_layer_count: Layers of the stage that its backward pass recomputes.
        held_bytes: What it holds on one device.
        saved_bytes: What one more recomputed layer would free; 0 where all are recomputed.
    """

    chunk_id: ChunkId
    token_count: int
    recompute_layer_count: int
    held_bytes: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """The moment at which one stage of one replica holds most.

    Attributes:
        replica_index: 0-based replica.
        stage_index: 0-based stage.
        kind: Direction of the pass that runs.
        chunk_id: Its chunk.
        state_bytes: Model states of one device.
        used_bytes: All that one device holds; what the pass needs while it runs is part of it where the profile tells.
        usable_bytes: What a plan may fill.
        chunks: Chunks in flight, the one of the pass among them, those that hold most first.
    """

    replica_index: int
    stage_index: int
    kind: ActionKind
    chunk_id: ChunkId
    state_bytes: float
    used_bytes: float
    usable_bytes: float
    chunks: tuple[ChunkInFlight, ...]

    @property
    def spare_bytes(self) -> float:
        """What is left."""
        return self.usable_bytes - self.used_bytes


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One changed number and what came of it.

    Attributes:
        change: What was changed, for people.
        makespan_s: Predicted seconds with the change; 0 where there is no plan.
        result: What came of it, for people.
    """

    change: str
    makespan_s: float
    result: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What binds a batch.

    Attributes:
        shortage: Why the batch does not fit; empty where it does.
        device_memory_bytes: Memory of one device that the explained plan has: the cluster's, or the least found that
            fits the batch; 0 where none was found.
        makespan_s: Predicted seconds of the explained plan.
        bubble_ratio: Its idle share.
        recompute_ratio: Its recompute share of the busy time.
        moments: Per stage of every replica that has a pipeline, the moment at which it holds most.
        what_ifs: What changes would buy: memory, recompute, slices.
    """

    shortage: str
    device_memory_bytes: float
    makespan_s: float
    bubble_ratio: float
    recompute_ratio: float
    moments: tuple[MemoryMoment, ...]
    what_ifs: tuple[WhatIf, ...]

    @property
    def memory_binds(self) -> bool:
        """Whether memory costs time: something is recomputed, or the first change, more memory, is faster."""
        with_more = self.what_ifs[0]
        return self.recompute_ratio > 0 or 0 < with_more.makespan_s < self.makespan_s * (1 - _SAME_RATIO)

    @property
    def tightest(self) -> MemoryMoment | None:
        """The moment with the fewest bytes to spare."""
        return min(self.moments, key=lambda moment: moment.spare_bytes, default=None)


def explain_batch(lengths: Sequence[int], profile: Profile, options: PlanOptions) -> Explanation:
    """Plan a batch and find out what binds it.

    Args:
        lengths: Tokens of every sequence.
        profile: Cost model and memory.
        options: How to plan.

    Raises:
        InvalidLengthsError: If the lengths cannot be planned.
        InvalidOptionsError: If the options make no sense.
    """

    def solve(changed_profile: Profile, changed_options: PlanOptions) -> ExecutionPlan:
        return solve_plan(lengths, changed_profile, changed_options)

    try:
        plan = solve(profile, options)
    except InfeasibleBatchError as shortage:
        return _explain_shortage(shortage, max(lengths), profile, options, solve)
    what_ifs = (
        _try_more_memory(plan, profile, options, solve),
        _try_more_recompute(plan, profile),
        _try_one_more_slice(plan, max(lengths), profile, options, solve),
    )
    return _describe(plan, profile, "", what_ifs)


def memory_moments(pipelines: Sequence[Pipeline], profile: Profile) -> tuple[MemoryMoment, ...]:
    """Find, for every stage of every replica that has a pipeline, the moment at which it holds most."""
    timeline = simulate(pipelines, profile)
    return tuple(_peak_moment(pipelines, profile, stage) for stage in timeline.stages if stage.spans)


def _describe(plan: ExecutionPlan, profile: Profile, shortage: str, what_ifs: tuple[WhatIf, ...]) -> Explanation:
    return Explanation(
        shortage=shortage,
        device_memory_bytes=profile.cluster.device_memory_bytes,
        makespan_s=plan.estimate.makespan_s,
        bubble_ratio=plan.estimate.bubble_ratio,
        recompute_ratio=plan.estimate.recompute_ratio,
        moments=memory_moments(plan.pipelines, profile),
        what_ifs=what_ifs,
    )


def _explain_shortage(
    shortage: InfeasibleBatchError, longest_tokens: int, profile: Profile, options: PlanOptions, solve: Solve
) -> Explanation:
    limit = options.max_slice_count
    more_slices = WhatIf("+1 slice", 0.0, "nothing: finer slices were tried already")
    if 0 < limit < longest_tokens:
        lifted = dataclasses.replace(options, max_slice_count=limit + 1)
        more_slices = _try_fitting(f"+1 slice ({limit + 1})", profile, lifted, solve)
    what_ifs = (
        _try_fitting(_MORE_MEMORY, _with_memory(profile, MORE_MEMORY_BYTES), options, solve),
        WhatIf("+1 recomputed layer", 0.0, "nothing: the shortage counts every layer as recomputed"),
        more_slices,
    )
    needed_bytes = shortage.needed_bytes
    for _ in range(_MEMORY_TRIES):
        missing_bytes = needed_bytes / profile.cluster.usable_memory_ratio - profile.cluster.device_memory_bytes
        # A byte more, for the product with the ratio may be a hair short.
        enough = _with_memory(profile, missing_bytes + 1)
        try:
            return _describe(solve(enough, options), enough, str(shortage), what_ifs)
        except InfeasibleBatchError as still_short:
            needed_bytes = max(still_short.needed_bytes, needed_bytes)
    return Explanation(str(shortage), 0.0, 0.0, 0.0, 0.0, (), what_ifs)


def _with_memory(profile: Profile, more_bytes: float) -> Profile:
    memory_bytes = profile.cluster.device_memory_bytes + more_bytes
    return dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=memory_bytes))


def _try_fitting(change: str, profile: Profile, options: PlanOptions, solve: Solve) -> WhatIf:
    try:
        plan = solve(profile, options)
    except InfeasibleBatchError as short:
        missing = format_bytes(short.needed_bytes - short.usable_bytes)
        return WhatIf(change, 0.0, f"not enough: stage {short.stage_index} still lacks {missing}")
    return WhatIf(change, plan.estimate.makespan_s, f"the batch fits, in {plan.estimate.makespan_s:.3f} s")


def _try_more_memory(plan: ExecutionPlan, profile: Profile, options: PlanOptions, solve: Solve) -> WhatIf:
    after = solve(_with_memory(profile, MORE_MEMORY_BYTES), options).estimate
    before = plan.estimate
    result = _compare(before.makespan_s, after.makespan_s)
    if before.recompute_ratio or after.recompute_ratio:
        result += f", recompute {before.recompute_ratio:.1%} -> {after.recompute_ratio:.1%} of busy time"
    return WhatIf(_MORE_MEMORY, after.makespan_s, result)


def _try_more_recompute(plan: ExecutionPlan, profile: Profile) -> WhatIf:
    """Recompute one layer more of the chunk that frees most at the tightest moment."""
    change = "+1 recomputed layer"
    moment = min(memory_moments(plan.pipelines, profile), key=lambda moment: moment.spare_bytes)
    chunk = max(moment.chunks, key=lambda chunk: chunk.saved_bytes)
    if chunk.saved_bytes <= 0:
        return WhatIf(change, 0.0, "nothing: no chunk in flight there would hold less")
    pipelines = [
        _recompute_more(p, index, moment.stage_index, chunk.chunk_id) for index, p in enumerate(plan.pipelines)
    ]
    makespan_s = simulate(pipelines, profile).makespan_s
    where = name_stage(moment.stage_index, moment.replica_index, plan.replica_count)
    freed = f"{format_bytes(chunk.saved_bytes)} free on {where} (chunk {name_of(chunk.chunk_id)})"
    return WhatIf(change, makespan_s, f"{freed}, {_compare(plan.estimate.makespan_s, makespan_s)}")


def _recompute_more(pipeline: Pipeline, pipeline_index: int, stage_index: int, chunk_id: ChunkId) -> Pipeline:
    if pipeline_index != chunk_id.pipeline_index:
        return pipeline
    wanted = (ActionKind.FORWARD, chunk_id.chunk_index)
    actions = tuple(
        action._replace(recompute_layer_count=action.recompute_layer_count + (action[:2] == wanted))
        for action in pipeline.stages[stage_index]
    )
    stages = (*pipeline.stages[:stage_index], actions, *pipeline.stages[stage_index + 1 :])
    return dataclasses.replace(pipeline, stages=stages)


def _try_one_more_slice(
    plan: ExecutionPlan, longest_tokens: int, profile: Profile, options: PlanOptions, solve: Solve
) -> WhatIf:
    """Look for the best candidate that cuts the longest sequence once more; where there was none, lift the limit."""
    count = plan.report.slice_count + 1
    change = f"+1 slice ({count})"
    if count > longest_tokens:
        return WhatIf(change, 0.0, "impossible: every token of the longest sequence is a slice")
    makespan_s = _makespan_with(count, plan, profile)
    if makespan_s is None:
        limited = solve(profile, dataclasses.replace(options, max_slice_count=count))
        makespan_s = _makespan_with(count, limited, profile)
    if makespan_s is None:
        return WhatIf(change, 0.0, "no plan: it does not fit, or the policy tries no such candidate")
    return WhatIf(change, makespan_s, _compare(plan.estimate.makespan_s, makespan_s))


def _makespan_with(slice_count: int, plan: ExecutionPlan, profile: Profile) -> float | None:
    """Predict the seconds with the best candidate that cuts the longest sequence so often; None where there is none.

    The candidate is of the replica that has the longest sequence; the others stay as they are.
    """
    pieces = [
        (s.end_token, -s.sequence_index, p.replica_index) for p in plan.pipelines for c in p.chunks for s in c.slices
    ]
    *_, replica_index = max(pieces)
    fitting = [
        candidate.makespan_s
        for candidate in plan.report.candidates
        if (candidate.replica_index, candidate.slice_count) == (replica_index, slice_count)
        and not candidate.infeasible_reason
    ]
    if not fitting:
        return None
    others = [one for one in simulate(plan.pipelines, profile).stages if one.replica_index != replica_index]
    return max([min(fitting), *(stage.spans[-1].end_s for stage in others if stage.spans)])


def _compare(before_s: float, after_s: float) -> str:
    change_s = after_s - before_s
    if abs(change_s) < _SAME_RATIO * before_s:
        return "the same time"
    return f"{abs(change_s):.3f} s {'faster' if change_s < 0 else 'slower'} ({change_s / before_s:+.1%})"


def name_of(chunk_id: ChunkId) -> str:
    """Name a chunk as the tables of a plan do."""
    return f"{chunk_id.pipeline_index}.{chunk_id.chunk_index}"


def _peak_moment(pipelines: Sequence[Pipeline], profile: Profile, stage: StageTimeline) -> MemoryMoment:
    peak = stage.spans[stage.peak_span_index]
    in_flight: dict[ChunkId, None] = {}
    for span in stage.spans[: stage.peak_span_index]:
        if span.kind is ActionKind.FORWARD:
            in_flight[span.chunk_id] = None
        else:
            del in_flight[span.chunk_id]
    in_flight[peak.chunk_id] = None  # a backward pass still has its chunk
    chunks = [_chunk_in_flight(pipelines[c.pipeline_index], c, profile, stage.stage_index) for c in in_flight]
    return MemoryMoment(
        replica_index=stage.replica_index,
        stage_index=stage.stage_index,
        kind=peak.kind,
        chunk_id=peak.chunk_id,
        state_bytes=profile.memory.model_state_bytes[stage.stage_index],
        used_bytes=stage.peak_bytes,
        usable_bytes=profile.usable_memory_bytes,
        chunks=tuple(sorted(chunks, key=lambda chunk: -chunk.held_bytes)),
    )


def _chunk_in_flight(pipeline: Pipeline, chunk_id: ChunkId, profile: Profile, stage_index: int) -> ChunkInFlight:
    costs, tokens = CostModel(profile), pipeline.chunks[chunk_id.chunk_index].token_count
    keeps_kv = chunk_id.chunk_index in kept_chunks(pipeline.chunks)
    layers = max(a.recompute_layer_count for a in pipeline.stages[stage_index] if a.chunk_index == chunk_id.chunk_index)
    is_full = layers >= profile.stage_layers[stage_index]
    return ChunkInFlight(
        chunk_id=chunk_id,
        token_count=tokens,
        recompute_layer_count=layers,
        held_bytes=costs.activation_bytes(tokens, stage_index, keeps_kv=keeps_kv, recompute_layer_count=layers),
        saved_bytes=0.0 if is_full else costs.saved_bytes_per_layer(tokens, keeps_kv=keeps_kv),
    )
