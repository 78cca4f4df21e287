"""`infinipipe plan --dry-run`: does a model fit on a cluster, in which layout, and how fast."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipipe_contract.errors import InvalidPlanError, ModelConfigError
from infinipipe_contract.hf_config import read_hf_config
from infinipipe_contract.model_flops import mean_attended_tokens
from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.text import format_bytes
from infinipipe_planner.analytic.dry_run import LayoutResult, fastest, legal_layouts, try_layout
from infinipipe_planner.analytic.lengths import synthetic_lengths
from infinipipe_planner.analytic.profile import (
    USABLE_MEMORY_RATIO,
    Hardware,
    HardwareError,
    describe_profile,
)
from infinipipe_planner.cli.inputs import InputError, read_lengths
from infinipipe_planner.cli.model import GradientPolicy, name_model, read_hardware
from infinipipe_planner.cli.output import EXIT_USAGE, OutputFormat, fail, planner_extra, working, write_result
from infinipipe_planner.errors import InvalidLengthsError, InvalidOptionsError, PlannerError
from infinipipe_planner.lengths import check_lengths

GIB_BYTES = 2**30
MIN_PEAKS_WIDTH = 20

HEADER = ("pp", "sp", "fits", "step s", "tokens/s", "bubble", "recompute", "peak GiB of every stage")


@dataclass(frozen=True, slots=True)
class Batch:
    """Lengths, and where they come from."""

    lengths_tokens: Sequence[int]
    source: str

    @property
    def token_count(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths_tokens)


def dry_run(
    *,
    model: Path,
    device: str,
    nodes: int,
    devices_per_node: int,
    gradient_policy: GradientPolicy,
    lengths: Path | None,
    context: int | None,
    sequences: int | None,
    policy: str,
    output_format: OutputFormat,
    output: Path | None,
) -> None:
    """Plan a batch under every layout and print what each is worth; leave with a failure if nothing fits."""
    try:
        batch = _read_batch(lengths, context, sequences)
        check_lengths(batch.lengths_tokens)
        hardware = read_hardware(device, nodes, devices_per_node)
        shape = read_hf_config(model, max(batch.lengths_tokens)).shape
    except (InputError, InvalidLengthsError, ModelConfigError, HardwareError) as error:
        fail(str(error), EXIT_USAGE)
    name = f"{name_model(model)} on {hardware.name}"
    results = _try_all(shape, hardware, batch, policy, gradient_policy)
    write = _format_json if output_format is OutputFormat.JSON else _format_text
    write_result(write(name, results, hardware, batch, gradient_policy), output)
    if fastest(results) is None:
        fail(f"{name} does not fit in any layout")


def _read_batch(lengths: Path | None, context: int | None, sequences: int | None) -> Batch:
    if lengths is not None and context is None and sequences is None:
        return Batch(read_lengths(lengths), "as given")
    if lengths is None and context is not None and sequences is not None:
        source = f"made up: log-normal like files on GitHub, cut at {context:,}, one of them full"
        return Batch(synthetic_lengths(context, sequences), source)
    raise InputError("a dry run needs either --lengths, or --context and --sequences for lengths that are made up")


def _try_all(
    shape: DecoderShape, hardware: Hardware, batch: Batch, policy: str, gradient_policy: GradientPolicy
) -> list[LayoutResult]:
    with planner_extra():
        from infinipipe_planner.options import PlanOptions  # noqa: PLC0415  # brings SCIP, see register
        from infinipipe_planner.solve import solve_plan  # noqa: PLC0415

    def solve(profile: Profile) -> ExecutionPlan:
        return solve_plan(batch.lengths_tokens, profile, PlanOptions(policy=policy))

    attended_tokens = mean_attended_tokens(batch.lengths_tokens)
    layouts = legal_layouts(shape, hardware)
    if not layouts:
        fail(
            f"no layout: stages times ranks must be all {hardware.device_count} devices, stages are at most the "
            f"{shape.layers} layers, ranks divide the {shape.heads} query heads and fill or divide nodes of "
            f"{hardware.devices_per_node} devices"
        )
    results = []
    for number, layout in enumerate(layouts, start=1):
        what = f"planning pp {layout.pp_size} x sp {layout.sp_size}, layout {number} of {len(layouts)} ..."
        try:
            with working(what):
                results.append(
                    try_layout(
                        shape,
                        hardware,
                        layout,
                        solve,
                        attended_tokens=attended_tokens,
                        shards_gradients=gradient_policy.shards_gradients,
                    )
                )
        except (InvalidLengthsError, InvalidOptionsError) as error:
            fail(str(error), EXIT_USAGE)
        except (PlannerError, InvalidPlanError) as error:
            fail(str(error))
    return results


def _format_text(
    name: str, results: Sequence[LayoutResult], hardware: Hardware, batch: Batch, gradient_policy: GradientPolicy
) -> str:
    width = shutil.get_terminal_size().columns
    title = f"{name}: {len(batch.lengths_tokens)} sequences, {batch.token_count:,} tokens ({batch.source})"
    reasons = [
        f"pp {result.layout.pp_size} x sp {result.layout.sp_size}: {result.outcome}"
        for result in results
        if not isinstance(result.outcome, ExecutionPlan)
    ]
    usable = format_bytes(hardware.device.memory_bytes * USABLE_MEMORY_RATIO)
    closing = (
        f"{usable} of a device are usable. All devices belong to one pipeline (pp x sp), replicas of it are not tried; "
        f"sp divides the query heads. {describe_profile(hardware, shards_gradients=gradient_policy.shards_gradients)}"
    )
    parts = [
        textwrap.fill(title, width),
        _format_table(results, batch.token_count, width),
        "\n".join(textwrap.fill(reason, width, subsequent_indent="  ") for reason in reasons),
        textwrap.fill(closing, width),
    ]
    return "\n\n".join(part for part in parts if part)


def _format_table(results: Sequence[LayoutResult], token_count: int, width: int) -> str:
    """Lay out the columns; the last one, as long as there are stages, goes on below itself."""
    best = fastest(results)
    rows = [HEADER, *(_row(result, token_count, is_best=result.layout == best) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    lines = []
    for *cells, peaks in rows:
        head = "".join(f"{cell:>{column}}  " for cell, column in zip(cells, widths, strict=True))
        fold_at = max(width - len(head), MIN_PEAKS_WIDTH)
        lines += [
            f"{head if index == 0 else '':{len(head)}}{part}".rstrip()
            for index, part in enumerate(textwrap.wrap(peaks, fold_at))
        ]
    return "\n".join(lines)


def _row(result: LayoutResult, token_count: int, *, is_best: bool) -> tuple[str, ...]:
    head = (str(result.layout.pp_size), str(result.layout.sp_size))
    if not isinstance(result.outcome, ExecutionPlan):
        return (*head, "no", *["-"] * 5)
    estimate = result.outcome.estimate
    return (
        *head,
        "best" if is_best else "yes",
        f"{estimate.makespan_s:.3f}",
        f"{token_count / estimate.makespan_s:,.0f}",
        f"{estimate.bubble_ratio:.1%}",
        f"{estimate.recompute_ratio:.1%}",
        " ".join(f"{stage.peak_bytes / GIB_BYTES:.1f}" for stage in estimate.stages),
    )


def _format_json(
    name: str, results: Sequence[LayoutResult], hardware: Hardware, batch: Batch, gradient_policy: GradientPolicy
) -> str:
    best = fastest(results)
    content = {
        "name": name,
        "sequence_count": len(batch.lengths_tokens),
        "token_count": batch.token_count,
        "lengths_source": batch.source,
        "gradient_policy": gradient_policy.value,
        "usable_memory_bytes": hardware.device.memory_bytes * USABLE_MEMORY_RATIO,
        "comment": describe_profile(hardware, shards_gradients=gradient_policy.shards_gradients),
        "layouts": [_layout_content(result, batch.token_count, is_best=result.layout == best) for result in results],
    }
    return json.dumps(content, indent=1)


def _layout_content(result: LayoutResult, token_count: int, *, is_best: bool) -> dict[str, Any]:
    content: dict[str, Any] = result.layout._asdict()
    if not isinstance(result.outcome, ExecutionPlan):
        error = result.outcome
        return content | {
            "fits": False,
            "is_best": False,
            "short_stage_index": error.stage_index,
            "needed_bytes": error.needed_bytes,
            "reason": str(error),
        }
    estimate = result.outcome.estimate
    return content | {
        "fits": True,
        "is_best": is_best,
        "step_s": estimate.makespan_s,
        "tokens_per_s": token_count / estimate.makespan_s,
        "bubble_ratio": estimate.bubble_ratio,
        "recompute_ratio": estimate.recompute_ratio,
        "stage_peak_bytes": [stage.peak_bytes for stage in estimate.stages],
    }
