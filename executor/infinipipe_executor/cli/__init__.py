"""Commands that the executor brings to ``infinipipe``; each imports what it needs inside, torch takes seconds."""

import typer

from infinipipe_executor.cli.export import export
from infinipipe_executor.cli.measure import measure


def register(app: typer.Typer) -> None:
    """Add the executor's commands; ``profile`` is a group that the planner adds to as well, whoever comes first."""
    app.command()(export)
    groups = [group.typer_instance for group in app.registered_groups if group.name == "profile"]
    profile = next((group for group in groups if group is not None), None)
    if profile is None:
        profile = typer.Typer(no_args_is_help=True, help="Make profiles: the numbers of the cost model.")
        app.add_typer(profile, name="profile")
    profile.command()(measure)
