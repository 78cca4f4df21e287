"""`infinipipe diff`: two plans beside each other."""

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from infinipipe_planner.cli.inputs import InputError, read_plan
from infinipipe_planner.cli.output import EXIT_USAGE, JsonOption, OutputFormat, fail, is_json, print_table
from infinipipe_planner.plan_diff import PlanDiff, diff_plans, diff_to_tree, format_change, format_value

LINE_WIDTH = 80
UNIT_SUFFIXES = ("_s", "_bytes", "_ratio")


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Plan file: plan or show with --json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Plan file to compare with it.")],
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    writes_json: JsonOption = False,
) -> None:
    """Compare two plans: of two policies, or of two steps."""
    try:
        found = diff_plans(read_plan(first), read_plan(second))
    except InputError as error:
        fail(str(error), EXIT_USAGE)
    if is_json(output_format, writes_json=writes_json):
        typer.echo(json.dumps(diff_to_tree(found), indent=2))
        return
    changed = [figure for figure in found.figures if figure.differs]
    if changed:
        print_table(
            ("", "A", "B", "change"),
            [
                (
                    _words(figure.name),
                    format_value(figure.name, figure.first),
                    format_value(figure.name, figure.second),
                    format_change(figure),
                )
                for figure in changed
            ],
        )
        typer.echo("")
    same = ", ".join(_words(figure.name) for figure in found.figures if not figure.differs)
    typer.echo(textwrap.fill(f"the same in both: {same}", LINE_WIDTH, subsequent_indent="  "))
    typer.echo(_verdict(found))


def _verdict(found: PlanDiff) -> str:
    if found.moved_sequence_count is None:
        return "the plans are for different batches"
    if found.runs_the_same:
        return "both plans run the same actions on the same slices"
    sequence_count = next(figure.first for figure in found.figures if figure.name == "sequences")
    return f"{found.moved_sequence_count} of {sequence_count} sequences are sliced or placed in another way"


def _words(name: str) -> str:
    """Write the name of a figure for people, whose value says its unit."""
    for suffix in UNIT_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")
