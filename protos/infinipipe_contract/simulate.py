"""Replay of a plan under a profile: when every action runs, and how much memory every stage holds.

Each stage runs its actions in the listed order, over all pipelines of its replica without a barrier; an action starts
when the stage is free and its message is there. Replicas run side by side and exchange nothing until all have ended:
the sum of their gradients, which costs every plan the same, is left out as the optimizer's step is. Memory is that of
``memory_replay``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.memory_replay import MemoryPass, replay_memory
from infinipipe_contract.plan import ActionKind, ChunkId, Estimate, Pipeline, StageEstimate, kept_chunks
from infinipipe_contract.profile import Profile
from infinipipe_contract.text import name_stage


class Span(NamedTuple):
    """One action in time: what it was, start and end in seconds, and its recompute seconds."""

    kind: ActionKind
    chunk_id: ChunkId
    start_s: float
    end_s: float
    recompute_s: float


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """What one stage of one replica does over time.

    Attributes:
        replica_index: Replica of the pipeline, from 0.
        stage_index: Stage of the pipeline, from 0.
        spans: Actions in the order they run.
        memory_bytes: Bytes in use on one device after each action, beside ``spans``; model states included.
        peak_bytes: Most at any moment, also within an action; the model states alone where the replica has no pipeline.
        peak_span_index: Which of ``spans`` needs that much; 0 where there are none.
    """

    replica_index: int
    stage_index: int
    spans: tuple[Span, ...]
    memory_bytes: tuple[float, ...]
    peak_bytes: float
    peak_span_index: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Replay of a whole plan.

    Attributes:
        stages: One timeline a stage of every replica: the stages of replica 0 first, then those of replica 1.
        makespan_s: Seconds until the last action of the slowest replica ends.
    """

    stages: tuple[StageTimeline, ...]
    makespan_s: float


class _Pass(NamedTuple):
    """One action with its price: seconds, the recompute part of them and its layers, bytes from forward to backward."""

    kind: ActionKind
    chunk_id: ChunkId
    cost_s: float
    recompute_s: float
    recompute_layer_count: int
    held_bytes: float
    transfer_s: float


def simulate(pipelines: Sequence[Pipeline], profile: Profile) -> Timeline:
    """Replay pipelines.

    Args:
        pipelines: Those of all replicas, each with as many stages as the profile; every stage runs those of its replica
            one after the other.
        profile: Cost model.

    Raises:
        InvalidPlanError: If a pipeline is of a replica that the profile does not have, or if stages wait for each other
            for ever; names each waiting stage and its action.
    """
    broken = list(broken_replicas(pipelines, profile.cluster.dp_size))
    if broken:
        raise InvalidPlanError(broken)
    costs = CostModel(profile)
    priced = _price_chunks(pipelines, costs)
    stages: list[StageTimeline] = []
    for replica_index in range(profile.cluster.dp_size):
        own = [pair for pair in zip(pipelines, priced, strict=True) if pair[0].replica_index == replica_index]
        stages += _replay_replica(replica_index, own, costs)
    return Timeline(tuple(stages), max((stage.spans[-1].end_s for stage in stages if stage.spans), default=0.0))


def broken_replicas(pipelines: Sequence[Pipeline], dp_size: int) -> Iterator[str]:
    """Name every pipeline of a replica that does not exist."""
    for pipeline_index, pipeline in enumerate(pipelines):
        if not 0 <= pipeline.replica_index < dp_size:
            replicas = f"the profile has {dp_size} (cluster.dp_size)"
            yield f"pipeline {pipeline_index} is of replica {pipeline.replica_index}, {replicas}"


def estimate_plan(pipelines: Sequence[Pipeline], profile: Profile) -> Estimate:
    """Replay pipelines and sum up what an operator asks first: time, bubble, recompute, memory."""
    timeline = simulate(pipelines, profile)
    stages = tuple(
        StageEstimate(
            busy_s=sum(span.end_s - span.start_s for span in stage.spans),
            recompute_s=sum(span.recompute_s for span in stage.spans),
            peak_bytes=stage.peak_bytes,
        )
        for stage in timeline.stages
    )
    busy_s = sum(stage.busy_s for stage in stages)
    lengths: dict[int, int] = {}
    for pipeline in pipelines:
        for chunk in pipeline.chunks:
            for piece in chunk.slices:
                lengths[piece.sequence_index] = max(lengths.get(piece.sequence_index, 0), piece.end_token)
    available_s = timeline.makespan_s * len(stages)
    return Estimate(
        makespan_s=timeline.makespan_s,
        ideal_s=CostModel(profile).ideal_s(sum(n * n for n in lengths.values()), sum(lengths.values())),
        bubble_ratio=1 - busy_s / available_s if available_s else 0.0,
        recompute_ratio=sum(stage.recompute_s for stage in stages) / busy_s if busy_s else 0.0,
        stages=stages,
    )


class _PricedChunk(NamedTuple):
    """What a chunk costs on an even stage: computations and all-to-all in seconds, and what memory depends on."""

    chunk_id: ChunkId
    forward_compute_s: float
    backward_compute_s: float
    all2all_s: float
    transfer_s: float
    token_count: int
    keeps_kv: bool


def _price_chunks(pipelines: Sequence[Pipeline], costs: CostModel) -> list[list[_PricedChunk]]:
    """Price every chunk once for all stages: adding up its slices is what takes time."""
    profile, priced = costs.profile, []
    for pipeline_index, pipeline in enumerate(pipelines):
        kept = kept_chunks(pipeline.chunks)
        of_pipeline = []
        for chunk_index, chunk in enumerate(pipeline.chunks):
            tokens = chunk.token_count
            of_pipeline.append(
                _PricedChunk(
                    ChunkId(pipeline_index, chunk_index),
                    costs.compute_s(profile.forward, chunk),
                    costs.compute_s(profile.backward, chunk),
                    costs.all2all_s(tokens),
                    costs.transfer_s(tokens),
                    tokens,
                    chunk_index in kept,
                )
            )
        priced.append(of_pipeline)
    return priced


def _replay_replica(
    replica_index: int, pipelines: Sequence[tuple[Pipeline, Sequence[_PricedChunk]]], costs: CostModel
) -> list[StageTimeline]:
    """Replay the pipelines of one replica, each beside its priced chunks."""
    cluster = costs.profile.cluster
    passes = [_price_stage(pipelines, stage_index, costs) for stage_index in range(cluster.pp_size)]
    spans = _replay(passes)
    waiting = [
        f"{name_stage(stage_index, replica_index, cluster.dp_size)} waits for ever at action {len(done)} of {len(todo)}"
        for stage_index, (done, todo) in enumerate(zip(spans, passes, strict=True))
        if len(done) < len(todo)
    ]
    if waiting:
        raise InvalidPlanError([f"deadlock: {', '.join(waiting)}"])
    stages = []
    by_index = {chunks[0].chunk_id.pipeline_index: pipeline for pipeline, chunks in pipelines if chunks}
    for stage_index, (done, todo) in enumerate(zip(spans, passes, strict=True)):
        memory_passes = [MemoryPass(p.kind, p.chunk_id, p.recompute_layer_count, p.held_bytes) for p in todo]
        memory = replay_memory(memory_passes, by_index, costs, stage_index)
        stages.append(StageTimeline(replica_index, stage_index, tuple(done), *memory))
    return stages


def _price_stage(
    pipelines: Sequence[tuple[Pipeline, Sequence[_PricedChunk]]], stage_index: int, costs: CostModel
) -> list[_Pass]:
    """Join the actions of one stage over all pipelines of its replica and price each."""
    stage_layers, passes = costs.stage_layers[stage_index], []
    for pipeline, chunks in pipelines:
        actions = pipeline.stages[stage_index]
        layer_counts = {a.chunk_index: a.recompute_layer_count for a in actions if a.kind is ActionKind.FORWARD}
        for kind, chunk_index, _ in actions:
            chunk, layers = chunks[chunk_index], layer_counts.get(chunk_index, 0)
            compute_s = chunk.forward_compute_s if kind is ActionKind.FORWARD else chunk.backward_compute_s
            head_s, recompute_s = costs.head_s(kind, chunk.token_count, stage_index), 0.0
            cost_s = costs.pass_s(kind, stage_index, compute_s, chunk.all2all_s, head_s)
            if layers and kind is ActionKind.BACKWARD:
                layers_s = costs.pass_s(ActionKind.FORWARD, stage_index, chunk.forward_compute_s, chunk.all2all_s, 0.0)
                recompute_s = layers / stage_layers * layers_s
                cost_s += recompute_s
            held_bytes = costs.activation_bytes(
                chunk.token_count, stage_index, keeps_kv=chunk.keeps_kv, recompute_layer_count=layers
            )
            passes.append(_Pass(kind, chunk.chunk_id, cost_s, recompute_s, layers, held_bytes, chunk.transfer_s))
    return passes


def _replay(passes: Sequence[Sequence[_Pass]]) -> list[list[Span]]:
    """Run every stage as far as its messages allow, round after round, until nothing moves."""
    spans: list[list[Span]] = [[] for _ in passes]
    clock_s = [0.0] * len(passes)
    # When each pass ended, by stage: the producer of a message is looked up here.
    ended: list[dict[tuple[ActionKind, ChunkId], float]] = [{} for _ in passes]
    progress = True
    while progress:
        progress = False
        for stage_index, todo in enumerate(passes):
            done = spans[stage_index]
            while len(done) < len(todo):
                this = todo[len(done)]
                ready_s = _ready_s(this, stage_index, ended)
                if ready_s is None:
                    break
                start_s = max(clock_s[stage_index], ready_s)
                end_s = clock_s[stage_index] = start_s + this.cost_s
                ended[stage_index][this.kind, this.chunk_id] = end_s
                done.append(Span(this.kind, this.chunk_id, start_s, end_s, this.recompute_s))
                progress = True
    return spans


def _ready_s(this: _Pass, stage_index: int, ended: Sequence[dict[tuple[ActionKind, ChunkId], float]]) -> float | None:
    """Tell when the input of a pass is on its stage; None while its producer has not run."""
    if this.kind is ActionKind.FORWARD:
        if stage_index == 0:
            return 0.0
        produced_s = ended[stage_index - 1].get((this.kind, this.chunk_id))
    elif stage_index == len(ended) - 1:
        return ended[stage_index].get((ActionKind.FORWARD, this.chunk_id))
    else:
        produced_s = ended[stage_index + 1].get((this.kind, this.chunk_id))
    return None if produced_s is None else produced_s + this.transfer_s
