"""The command `infinipipe`: commands come from the entry points of the group `infinipipe.commands`.

Every entry is a function ``register(app)`` that adds commands to the Typer application; it imports what its commands
need inside them, so that each part of the project is of use without the others.
"""

import importlib.metadata
from typing import Annotated

import typer

from infinipipe_planner.cli.access import asks_planner
from infinipipe_planner.cli.compare import compare
from infinipipe_planner.cli.delete import delete
from infinipipe_planner.cli.diff import diff
from infinipipe_planner.cli.health import health
from infinipipe_planner.cli.jobs import jobs
from infinipipe_planner.cli.plan import plan
from infinipipe_planner.cli.plans import plans
from infinipipe_planner.cli.profile import profile
from infinipipe_planner.cli.report import report
from infinipipe_planner.cli.serve import serve
from infinipipe_planner.cli.show import show
from infinipipe_planner.cli.trace import trace
from infinipipe_planner.cli.watch import watch

COMMAND_GROUP = "infinipipe.commands"


def register(app: typer.Typer) -> None:
    """Add the planner's commands."""
    for local_command in (serve, compare, diff):
        app.command()(local_command)
    for asking_command in (plan, jobs, plans, show, watch, trace, report, delete, health):
        app.command()(asks_planner(asking_command))
    _add_profile(app)


def _add_profile(app: typer.Typer) -> None:
    """Add to the group ``profile``, which the executor adds to as well, whoever comes first."""
    groups = [group.typer_instance for group in app.registered_groups if group.name == "profile"]
    group = next((group for group in groups if group is not None), None)
    if group is None:
        app.add_typer(profile, name="profile")
    else:
        group.registered_commands += profile.registered_commands


def build_app() -> typer.Typer:
    """Build the application with the commands of every installed part."""
    app = typer.Typer(
        help="Elastic pipeline parallelism: plan training steps and look at the plans.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for entry in sorted(importlib.metadata.entry_points(group=COMMAND_GROUP), key=lambda entry: entry.name):
        entry.load()(app)
    return app


def main() -> None:
    """Run `infinipipe`."""
    build_app()()


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"infinipipe {importlib.metadata.version('infinipipe')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Hold the options that come before the command."""
