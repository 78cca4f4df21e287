"""`infinipipe plan --explain`: what binds a batch."""

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.profile import Profile
from infinipipe_contract.text import format_bytes, name_stage
from infinipipe_planner.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    OutputFormat,
    fail,
    planner_extra,
    working,
    write_result,
)
from infinipipe_planner.errors import InvalidLengthsError, InvalidOptionsError, PlannerError

if TYPE_CHECKING:
    from infinipipe_planner.explain import Explanation, MemoryMoment

SHOWN_CHUNKS = 10


def explain(
    lengths_tokens: Sequence[int], profile: Profile, policy: str, output_format: OutputFormat, output: Path | None
) -> None:
    """Plan a batch, plan it again with changed numbers, and print what binds; leave with a failure if nothing fits."""
    with planner_extra():
        from infinipipe_planner.explain import explain_batch  # noqa: PLC0415  # brings SCIP
        from infinipipe_planner.options import PlanOptions  # noqa: PLC0415
    try:
        with working("planning, and planning again with changed numbers ..."):
            found = explain_batch(lengths_tokens, profile, PlanOptions(policy=policy))
    except (InvalidLengthsError, InvalidOptionsError) as error:
        fail(str(error), EXIT_USAGE)
    except (PlannerError, InvalidPlanError) as error:
        fail(str(error))
    if output_format is OutputFormat.JSON:
        write_result(json.dumps(dataclasses.asdict(found), indent=1, default=_write_kind), output)
    else:
        write_result(format_explanation(found, profile), output)
    if found.shortage:
        fail("the batch does not fit in memory", EXIT_FAILURE)


def _write_kind(value: object) -> str:
    """Write the direction of a pass as `show --json` does."""
    assert isinstance(value, ActionKind)
    return value.name.lower()


def format_explanation(found: "Explanation", profile: Profile) -> str:
    """Write an explanation for a terminal."""
    width = shutil.get_terminal_size().columns
    parts = [_fill(_verdict(found, profile), width)]
    tightest = found.tightest
    if tightest is not None:
        replica_count = profile.cluster.dp_size
        rows = [
            (
                *((str(moment.replica_index),) if replica_count > 1 else ()),
                f"{moment.stage_index}{' *' if moment is tightest else ''}",
                f"{moment.kind.value}{moment.chunk_id.chunk_index} of pipeline {moment.chunk_id.pipeline_index}",
                str(len(moment.chunks)),
                format_bytes(moment.state_bytes),
                format_bytes(moment.used_bytes),
                format_bytes(moment.spare_bytes),
            )
            for moment in found.moments
        ]
        where = ("replica", "stage") if replica_count > 1 else ("stage",)
        parts.append(_table((*where, "fullest in", "chunks in flight", "model states", "all", "spare"), rows))
        parts.append(_chunk_table(tightest, replica_count))
    changes = [(what_if.change, what_if.result) for what_if in found.what_ifs]
    parts.append("What a change buys, found by planning again with it:")
    label = max(len(change) for change, _ in changes)
    parts[-1] += "".join(
        "\n" + textwrap.fill(f"  {change:<{label}}  {result}", width, subsequent_indent=" " * (label + 4))
        for change, result in changes
    )
    return "\n\n".join(parts)


def _verdict(found: "Explanation", profile: Profile) -> str:
    if not found.shortage:
        recompute = f"{found.recompute_ratio:.1%} of the busy time is recompute"
        time = f"The batch takes {found.makespan_s:.3f} s: {found.bubble_ratio:.1%} bubble, and {recompute}."
        return f"{time} {'Memory binds.' if found.memory_binds else 'Memory does not bind.'}"
    sentence = found.shortage[0].upper() + found.shortage[1:] + "."
    if not found.moments:
        return f"{sentence} No memory size that was tried makes it fit."
    had, needed = profile.cluster.device_memory_bytes, found.device_memory_bytes
    return (
        f"{sentence} Devices of {needed / 1e9:.2f} GB instead of {had / 1e9:.2f} GB would just do. With them the batch "
        f"takes {found.makespan_s:.3f} s, and this is where memory is tightest:"
    )


def _chunk_table(moment: "MemoryMoment", replica_count: int) -> str:
    shown = moment.chunks[:SHOWN_CHUNKS]
    rows = [
        (
            f"{chunk.chunk_id.pipeline_index}.{chunk.chunk_id.chunk_index}",
            f"{chunk.token_count:,}",
            str(chunk.recompute_layer_count),
            format_bytes(chunk.held_bytes),
            format_bytes(chunk.saved_bytes) if chunk.saved_bytes > 0 else "-",
        )
        for chunk in shown
    ]
    where = name_stage(moment.stage_index, moment.replica_index, replica_count)
    title = f"In flight on {where}, the tightest (*), at that moment:"
    table = _table(("chunk", "tokens", "recomputed layers", "holds", "one more layer frees"), rows)
    rest = moment.chunks[SHOWN_CHUNKS:]
    if rest:
        table += f"\nand {len(rest)} more, {format_bytes(sum(chunk.held_bytes for chunk in rest))}"
    return f"{title}\n{table}"


def _fill(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )
