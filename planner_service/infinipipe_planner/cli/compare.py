"""`infinipipe compare`: policies and other systems side by side on one batch."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from infinipipe_contract.names import unknown
from infinipipe_contract.profile import Profile
from infinipipe_contract.text import format_bytes
from infinipipe_planner.cli.inputs import InputError, read_lengths, read_profile
from infinipipe_planner.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    JsonOption,
    OutputFormat,
    fail,
    is_json,
    planner_extra,
    print_table,
    warn_extrapolation,
)
from infinipipe_planner.errors import InvalidLengthsError, InvalidOptionsError

if TYPE_CHECKING:
    from infinipipe_planner.baselines.comparison import Outcome

HEADER = (
    "policy",
    "time s",
    "tokens\nper s",
    "bubble",
    "recom-\npute",
    "all-to-\nall",
    "ZeRO",
    "peak\nmemory",
    "speed-\nup",
)


def compare(
    profile: Annotated[Path, typer.Option(help="Profile file (JSON): the cost model.")],
    lengths: Annotated[
        Path,
        typer.Option(help='Lengths in tokens: {"lengths": [...]}, a JSON list, or one a line; "-" is standard input.'),
    ],
    policies: Annotated[
        str, typer.Option(metavar="A,B,...", help="What to compare, by name.", show_default="everything there is")
    ] = "",
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="What speed-ups refer to.", show_default="the slowest")
    ] = "",
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    writes_json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw where the time goes, as PNG, SVG or PDF by its ending.")
    ] = None,
) -> None:
    """Compare policies and other systems on one batch; every number is what the profile's cost model expects.

    Policies give plans. ulysses, flexsp and megatron are cost models of systems that run without such a plan.
    """
    with planner_extra():
        from infinipipe_planner.baselines import comparison  # noqa: PLC0415  # brings SCIP, see register
    methods = list(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip())) or comparison.METHODS
    if plot is not None:
        _require_plotting(plot)
    try:
        cost_model, lengths_tokens = read_profile(profile), read_lengths(lengths)
        warn_extrapolation(cost_model, lengths_tokens)
        if baseline and baseline not in methods:
            raise InvalidOptionsError(unknown("baseline", baseline, methods))
        with _progress() as say:
            outcomes = comparison.compare_methods(lengths_tokens, cost_model, methods, say)
    except (InputError, InvalidLengthsError, InvalidOptionsError) as error:
        fail(str(error), EXIT_USAGE)
    outcomes = sorted(outcomes, key=_seconds)
    reference = _reference(outcomes, baseline)
    if is_json(output_format, writes_json=writes_json):
        typer.echo(json.dumps([_record(one, sum(lengths_tokens), reference) for one in outcomes], indent=1))
    else:
        _print(outcomes, lengths_tokens, cost_model, reference)
    if plot is not None:
        _draw(outcomes, f"{cost_model.name}: {len(lengths_tokens)} sequences", plot)
    if reference is None:
        raise typer.Exit(EXIT_FAILURE)


def _seconds(outcome: "Outcome") -> float:
    return outcome.breakdown.total_s if outcome.breakdown else float("inf")


def _reference(outcomes: Sequence["Outcome"], baseline: str) -> "Outcome | None":
    """Find what speed-ups refer to: the baseline if it fits, else the slowest that does."""
    fitting = [one for one in outcomes if one.breakdown is not None]
    named = [one for one in fitting if one.method == baseline]
    chosen = named or fitting
    return chosen[-1] if chosen else None


class _Say:
    """Tells what is being worked on, on a terminal only."""

    def __init__(self, console: Console) -> None:
        self.status = console.status("comparing ...")

    def __call__(self, method: str) -> None:
        self.status.update(f"comparing: {method} ...")


@contextlib.contextmanager
def _progress() -> Iterator[_Say]:
    console = Console(stderr=True)
    say = _Say(console)
    with say.status if console.is_terminal else contextlib.nullcontext():
        yield say


def _print(
    outcomes: Sequence["Outcome"], lengths_tokens: Sequence[int], profile: Profile, reference: "Outcome | None"
) -> None:
    total_tokens = sum(lengths_tokens)
    typer.echo(
        f"{profile.name}: {len(lengths_tokens)} sequences, {total_tokens} tokens, longest {max(lengths_tokens)}, "
        f"{profile.device_count * profile.cluster.dp_size} devices\n"
    )
    print_table(HEADER, [_row(one, total_tokens, reference) for one in outcomes])
    typer.echo("")
    if reference is not None:
        typer.echo(f"speed-up over {reference.method}; shares are of the time, mean over devices")
    for one in outcomes:
        if one.breakdown is None:
            typer.echo(f"{one.method} does not fit: {one.shortage}")
        else:
            typer.echo(f"{one.method}: {one.breakdown.configuration}")


def _row(outcome: "Outcome", total_tokens: int, reference: "Outcome | None") -> tuple[str, ...]:
    parts = outcome.breakdown
    if parts is None or reference is None:
        return (outcome.method, *["-"] * (len(HEADER) - 1))
    shares = (parts.idle_s, parts.recompute_s, parts.exchange_s, parts.zero_s)
    return (
        outcome.method,
        f"{parts.total_s:.3f}",
        f"{total_tokens / parts.total_s:.0f}",
        *(f"{share / parts.total_s:.1%}" for share in shares),
        format_bytes(parts.peak_bytes),
        f"{_seconds(reference) / parts.total_s:.2f}x",
    )


def _record(outcome: "Outcome", total_tokens: int, reference: "Outcome | None") -> dict[str, object]:
    parts = outcome.breakdown
    if parts is None or reference is None:
        return {"policy": outcome.method, "fits": False, "reason": outcome.shortage}
    return {
        "policy": outcome.method,
        "fits": True,
        "total_s": parts.total_s,
        "tokens_per_s": total_tokens / parts.total_s,
        "speed_up": _seconds(reference) / parts.total_s,
        "speed_up_over": reference.method,
        "work_s": parts.work_s,
        "fixed_s": parts.fixed_s,
        "recompute_s": parts.recompute_s,
        "all2all_s": parts.exchange_s,
        "zero_s": parts.zero_s,
        "hidden_zero_s": parts.hidden_zero_s,
        "bubble_s": parts.idle_s,
        "peak_bytes": parts.peak_bytes,
        "configuration": parts.configuration,
    }


def _require_plotting(path: Path) -> None:
    """Leave before the work is done where the picture could not be drawn afterwards."""
    try:
        from infinipipe_planner.cli.plot import picture_endings  # noqa: PLC0415  # matplotlib is an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        fail("--plot needs matplotlib, which is not installed: pip install 'infinipipe[plot]'")
    endings = picture_endings()
    if path.suffix.removeprefix(".").lower() not in endings:
        fail(f"--plot {path}: the ending must be one of {', '.join(endings)}", EXIT_USAGE)
    if not path.parent.is_dir():
        fail(f"--plot {path}: there is no folder {path.parent}", EXIT_USAGE)


def _draw(outcomes: Sequence["Outcome"], title: str, path: Path) -> None:
    from infinipipe_planner.cli.plot import draw_breakdowns  # noqa: PLC0415  # matplotlib is an extra

    fitting = [(one.method, one.breakdown) for one in outcomes if one.breakdown is not None]
    try:
        draw_breakdowns(fitting, title, path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", EXIT_USAGE)
