"""Text: a plan as a grid and as tables, for terminals, logs, docs and golden tests."""

from collections import Counter
from collections.abc import Iterable, Sequence

from infinipipe_contract.plan import Action, ActionKind, ChunkKind, ExecutionPlan, Pipeline, chunk_kinds


def format_bytes(count: float) -> str:
    """Write bytes with a binary unit, for example ``3.2 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def count_of(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 chunk``, ``2 chunks``, ``2 micro-batches``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def name_stage(stage_index: int, replica_index: int, replica_count: int) -> str:
    """Name a stage for people: ``stage 1``, or ``replica 0, stage 1`` where there are several replicas."""
    return f"stage {stage_index}" if replica_count == 1 else f"replica {replica_index}, stage {stage_index}"


def format_action(action: Action) -> str:
    """Write an action as ``F3``, or ``F3r2`` where two layers will be recomputed."""
    suffix = f"r{action.recompute_layer_count}" if action.recompute_layer_count else ""
    return f"{action.kind.value}{action.chunk_index}{suffix}"


def plan_grid(plan: ExecutionPlan, *, width: int = 80) -> str:
    """Draw a plan stage by stage, in the order every stage runs its actions.

    A backward pass shows the layers it recomputes: ``F3 ... B3r2``. Lines longer than ``width`` are folded.
    """
    lines = []
    for replica_index in range(plan.replica_count):
        replica = f"replica {replica_index}" if plan.replica_count > 1 else ""
        prefix = f"{replica}, " if replica else ""
        own = [(index, one) for index, one in enumerate(plan.pipelines) if one.replica_index == replica_index]
        for pipeline_index, pipeline in own:
            lines.append(f"{prefix}pipeline {pipeline_index}: {_describe_chunks(pipeline)}")
            lines += _stage_lines(pipeline, width)
        if not own:
            lines.append(f"{replica}: no pipeline")
    return "\n".join(lines)


def _stage_lines(pipeline: Pipeline, width: int) -> list[str]:
    lines = []
    for stage_index, actions in enumerate(pipeline.stages):
        recompute = {a.chunk_index: a.recompute_layer_count for a in actions if a.kind is ActionKind.FORWARD}
        words = [
            format_action(
                action._replace(
                    recompute_layer_count=recompute[action.chunk_index] if action.kind is ActionKind.BACKWARD else 0
                )
            )
            for action in actions
        ]
        lines += _fold(f"  stage {stage_index}  ", words, width)
    return lines


def plan_tables(plan: ExecutionPlan) -> str:
    """Write what a plan is made of and what it is expected to cost: summary, stages, chunks, sweep."""
    parts = [_summary_table(plan), _stage_table(plan), _chunk_table(plan)]
    if plan.report.candidates:
        parts.append(_candidate_table(plan))
    return "\n\n".join(parts)


def _summary_table(plan: ExecutionPlan) -> str:
    estimate = plan.estimate
    reason = plan.report.fallback_reason
    chunks = [chunk for pipeline in plan.pipelines for chunk in pipeline.chunks]
    token_count = sum(chunk.token_count for chunk in chunks)
    replicas = f" on {plan.replica_count} replicas" if plan.replica_count > 1 else ""
    return _table(
        (),
        [
            ("policy", plan.policy),
            ("sequences", str(len({piece.sequence_index for chunk in chunks for piece in chunk.slices}))),
            ("tokens", f"{token_count}, {plan.target_token_count} targets"),
            ("pipelines", f"{len(plan.pipelines)}{replicas}"),
            ("chunks", f"{len(chunks)} ({format_kinds(plan)})"),
            ("slices of the longest sequence", str(plan.report.slice_count)),
            ("predicted time", f"{estimate.makespan_s:.3f} s, {_ratio(estimate.makespan_s, estimate.ideal_s)} x ideal"),
            ("bubble", f"{estimate.bubble_ratio:.1%}"),
            ("recompute", f"{estimate.recompute_ratio:.1%} of busy time, {recompute_layer_total(plan)} layer passes"),
            ("recompute solved", _outcome(plan)),
            *([("fallback because", reason)] if reason else []),
            ("digest", plan.digest[:16]),
        ],
    )


def _stage_table(plan: ExecutionPlan) -> str:
    return _table(
        (*_replica_cell(plan, "replica"), "stage", "busy s", "recompute s", "peak memory"),
        [
            (
                *_replica_cell(plan, replica_index),
                str(stage_index),
                f"{stage.busy_s:.3f}",
                f"{stage.recompute_s:.3f}",
                format_bytes(stage.peak_bytes),
            )
            for replica_index, stage_index, stage in plan.placed_estimates()
        ],
    )


def _chunk_table(plan: ExecutionPlan) -> str:
    rows = [
        (
            *_replica_cell(plan, pipeline.replica_index),
            f"{pipeline_index}.{index}",
            kind.value,
            str(chunk.token_count),
            str(chunk.context_tokens),
            str(len(chunk.slices)),
            " ".join(str(_recompute_of(actions, index)) for actions in pipeline.stages),
        )
        for pipeline_index, pipeline in enumerate(plan.pipelines)
        for index, (chunk, kind) in enumerate(zip(pipeline.chunks, chunk_kinds(pipeline.chunks), strict=True))
    ]
    titles = ("chunk", "kind", "tokens", "context", "slices", "recomputed layers per stage")
    return _table((*_replica_cell(plan, "replica"), *titles), rows)


def _candidate_table(plan: ExecutionPlan) -> str:
    return _table(
        (*_replica_cell(plan, "replica"), "tried", "predicted s", "solve s", "note"),
        [
            (
                *_replica_cell(plan, candidate.replica_index),
                candidate.name,
                "-" if candidate.infeasible_reason else f"{candidate.makespan_s:.3f}",
                f"{candidate.solve_s:.2f}",
                candidate.infeasible_reason,
            )
            for candidate in plan.report.candidates
        ],
    )


def _replica_cell(plan: ExecutionPlan, title_or_index: str | int) -> tuple[str, ...]:
    """A cell of the column for the replica, where there are several."""
    return (str(title_or_index),) if plan.replica_count > 1 else ()


def format_kinds(plan: ExecutionPlan) -> str:
    """Count the chunks of each kind, for example ``5 batched, 2 split, 1 hybrid``."""
    counts = Counter(kind for pipeline in plan.pipelines for kind in chunk_kinds(pipeline.chunks))
    return ", ".join(f"{counts[kind]} {kind.value}" for kind in ChunkKind)


def recompute_layer_total(plan: ExecutionPlan) -> int:
    """Count the layers recomputed over all chunks and stages."""
    return sum(
        action.recompute_layer_count for pipeline in plan.pipelines for stage in pipeline.stages for action in stage
    )


def _describe_chunks(pipeline: Pipeline) -> str:
    counts = Counter(chunk_kinds(pipeline.chunks))
    kinds = ", ".join(f"{counts[kind]} {kind.value}" for kind in ChunkKind if counts[kind])
    return f"{len(pipeline.chunks)} chunks ({kinds})"


def _recompute_of(actions: Sequence[Action], chunk_index: int) -> int:
    return max(action.recompute_layer_count for action in actions if action.chunk_index == chunk_index)


def _outcome(plan: ExecutionPlan) -> str:
    gap = f", gap {plan.report.gap_ratio:.1%}" if plan.report.gap_ratio else ""
    return f"{plan.report.outcome.value}{gap}, {plan.report.solve_s:.2f} s"


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else "-"


def _fold(prefix: str, words: Sequence[str], width: int) -> list[str]:
    """Join words behind a prefix; continue on indented lines where they do not fit."""
    lines, line = [], prefix.rstrip() + " " * (len(prefix) - len(prefix.rstrip()) - 1)
    for word in words:
        if len(line) + 1 + len(word) > width and line.strip():
            lines.append(line)
            line = " " * (len(prefix) - 1)
        line += " " + word
    return [*lines, line]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out columns; the last one is not padded, so that lines do not end in blanks."""
    rows = [*([header] if header else []), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
