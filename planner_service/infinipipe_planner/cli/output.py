"""What commands print: results on standard output, everything else on standard error."""

import contextlib
import enum
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from infinipipe_contract.codec import plan_to_json
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile, extrapolation
from infinipipe_contract.text import plan_grid, plan_tables

EXIT_FAILURE = 1
"""The request was fine and failed: no planner, no plan."""

EXIT_USAGE = 2
"""The request was wrong: a bad file, a bad value."""

PLANNER_EXTRA_MODULES = frozenset(
    {"ray", "pyscipopt", "grpc_health", "grpc_reflection", "prometheus_client", "pythonjsonlogger"}
)


class OutputFormat(enum.StrEnum):
    """How a plan is written."""

    TEXT = "text"
    JSON = "json"


JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
"""Every command that shows something has it; beside ``--format`` it is short for ``--format json``."""


def is_json(output_format: OutputFormat, *, writes_json: bool) -> bool:
    """Tell whether a command writes JSON; ``--json`` wins over ``--format text``."""
    return writes_json or output_format is OutputFormat.JSON


def fail(sentence: str, exit_code: int = EXIT_FAILURE) -> NoReturn:
    """Say what is wrong and leave."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(exit_code)


def warn_extrapolation(profile: Profile, lengths_tokens: Sequence[int]) -> None:
    """Say on stderr where a batch goes beyond what its profile was measured with."""
    sentence = extrapolation(profile, max(lengths_tokens, default=0))
    if sentence is not None:
        typer.echo(f"warning: {sentence}", err=True)


def format_plan(plan: ExecutionPlan, output_format: OutputFormat) -> str:
    """Write a plan for a person (tables, then the grid at the terminal's width) or for a program."""
    if output_format is OutputFormat.JSON:
        return plan_to_json(plan)
    return f"{plan_tables(plan)}\n\n{plan_grid(plan, width=shutil.get_terminal_size().columns)}"


def write_result(text: str, output: Path | None) -> None:
    """Print a result, or write it to a file."""
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}", EXIT_USAGE)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a header; words stand left, numbers right, what is too long is folded and never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(header):
        is_number = all(row[column][:1].isdigit() or row[column] == "-" for row in rows)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Turn a spinner on a terminal while something takes time; print nothing elsewhere."""
    console = Console(stderr=True)
    with console.status(what) if console.is_terminal else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def planner_extra() -> Iterator[None]:
    """Around imports: say which packages are missing where only a part of the project is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PLANNER_EXTRA_MODULES:
            raise
        fail(f"this command needs {error.name}, which is not installed: pip install 'infinipipe[planner]'")
