"""A step as trace events, the JSON that Perfetto and chrome://tracing open.

Two processes side by side on one clock: "planned" with a thread a stage of every replica and its memory as a counter,
"measured" with a thread a rank. Arrows are messages between stages. Pure; ``cli.trace`` reads and writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infinipipe_contract.plan import Action, ActionKind, ChunkId, ExecutionPlan, chunk_kinds
from infinipipe_contract.simulate import Span, StageTimeline, Timeline
from infinipipe_contract.text import format_action, name_stage
from infinipipe_planner.measured import MeasuredRank, MeasuredSpan

PLANNED_PID, MEASURED_PID = 1, 2

Event = dict[str, Any]


def build_trace(plan: ExecutionPlan, planned: Timeline, measured: Sequence[MeasuredRank]) -> dict[str, Any]:
    """Write a step as a trace in the JSON object format of trace events.

    Args:
        plan: The plan of the step.
        planned: Its replay.
        measured: What ranks measured, on one clock; empty before the step ran.

    Returns:
        A tree ready for ``json.dumps``: metadata first, then events in the order of time (microseconds).
    """
    labels = _Labels(plan)
    metadata = _name_process(PLANNED_PID, "planned")
    events: list[Event] = []
    for tid, stage in enumerate(planned.stages):
        name = name_stage(stage.stage_index, stage.replica_index, plan.replica_count)
        metadata += _name_thread(PLANNED_PID, tid, name)
        events += [labels.event(PLANNED_PID, tid, stage.stage_index, span) for span in stage.spans]
        events += _memory_counter(name, stage)
    events += _messages(planned)
    if measured:
        metadata += _name_process(MEASURED_PID, "measured")
    for rank in measured:
        name = name_stage(rank.stage_index, rank.replica_index, plan.replica_count)
        metadata += _name_thread(MEASURED_PID, rank.rank, f"rank {rank.rank} ({name})")
        events += [labels.event(MEASURED_PID, rank.rank, rank.stage_index, span) for span in rank.spans]
    return {
        "traceEvents": metadata + sorted(events, key=lambda event: event["ts"]),
        "displayTimeUnit": "ms",
        "otherData": {
            "job": plan.job,
            "generation": plan.generation,
            "step": plan.step,
            "policy": plan.policy,
            "digest": plan.digest,
            "predicted_s": planned.makespan_s,
            "measured_peak_bytes": {str(rank.rank): rank.peak_bytes for rank in measured},
        },
    }


class _Labels:
    """What is written on actions: everything that is known about their chunk."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._args: dict[ChunkId, Mapping[str, Any]] = {}
        self._layers: dict[tuple[int, ChunkId], int] = {}
        for pipeline_index, pipeline in enumerate(plan.pipelines):
            for chunk_index, (chunk, kind) in enumerate(
                zip(pipeline.chunks, chunk_kinds(pipeline.chunks), strict=True)
            ):
                self._args[ChunkId(pipeline_index, chunk_index)] = {
                    "pipeline": pipeline_index,
                    "chunk": chunk_index,
                    "kind": kind.value,
                    "tokens": chunk.token_count,
                    "context_tokens": chunk.context_tokens,
                    "slices": len(chunk.slices),
                }
            for stage_index, actions in enumerate(pipeline.stages):
                for action in actions:
                    if action.kind is ActionKind.FORWARD:
                        chunk_id = ChunkId(pipeline_index, action.chunk_index)
                        self._layers[stage_index, chunk_id] = action.recompute_layer_count

    def event(self, pid: int, tid: int, stage_index: int, span: Span | MeasuredSpan) -> Event:
        """Write an action as a complete event; the backward pass names the layers that it recomputes."""
        layers = self._layers[stage_index, span.chunk_id]
        shown_layers = layers if span.kind is ActionKind.BACKWARD else 0
        args = {**self._args[span.chunk_id], "recompute_layers": layers}
        if isinstance(span, Span) and span.recompute_s:
            args["recompute_ms"] = span.recompute_s * 1e3
        start_us = _microseconds(span.start_s)
        return {
            "name": format_action(Action(span.kind, span.chunk_id.chunk_index, shown_layers)),
            "cat": span.kind.name.lower(),
            "ph": "X",
            "ts": start_us,
            "dur": round(_microseconds(span.end_s) - start_us, 3),
            "pid": pid,
            "tid": tid,
            "args": args,
        }


def _memory_counter(name: str, stage: StageTimeline) -> Iterable[Event]:
    for span, memory_bytes in zip(stage.spans, stage.memory_bytes, strict=True):
        yield {
            "name": f"memory of {name}",
            "ph": "C",
            "ts": _microseconds(span.end_s),
            "pid": PLANNED_PID,
            "args": {"bytes": memory_bytes},
        }


def _messages(planned: Timeline) -> Iterable[Event]:
    """Draw an arrow from every pass to the one that waits for its message."""
    received = {
        (stage.replica_index, stage.stage_index, span.kind, span.chunk_id): (tid, span)
        for tid, stage in enumerate(planned.stages)
        for span in stage.spans
    }
    message_id = 0
    for tid, stage in enumerate(planned.stages):
        for span in stage.spans:
            neighbour = stage.stage_index + (1 if span.kind is ActionKind.FORWARD else -1)
            found = received.get((stage.replica_index, neighbour, span.kind, span.chunk_id))
            if found is None:
                continue  # the first stage sends no gradients, the last one no activations
            receiver, waiting = found
            message_id += 1
            # An arrow belongs to the slice that encloses it, and a slice does not enclose its own end.
            sent_us = round(max(_microseconds(span.start_s), _microseconds(span.end_s) - 0.001), 3)
            received_us = _microseconds(waiting.start_s)
            what = "activation" if span.kind is ActionKind.FORWARD else "gradient"
            common = {"name": what, "cat": "message", "id": message_id, "pid": PLANNED_PID}
            yield {**common, "ph": "s", "ts": sent_us, "tid": tid}
            yield {**common, "ph": "f", "bp": "e", "ts": received_us, "tid": receiver}


def _name_process(pid: int, name: str) -> list[Event]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}},
    ]


def _name_thread(pid: int, tid: int, name: str) -> list[Event]:
    return [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}},
        {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
    ]


def _microseconds(seconds: float) -> float:
    """Whole nanoseconds, so that an action's end and the next one's start stay equal."""
    return round(seconds * 1e9) / 1e3
