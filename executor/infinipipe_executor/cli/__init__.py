"""Commands that the executor brings to ``infinipipe``; each imports what it needs inside, torch takes seconds."""

import typer

from infinipipe_executor.cli.export import export


def register(app: typer.Typer) -> None:
    """Add the executor's commands."""
    app.command()(export)
