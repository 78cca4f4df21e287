"""Commands that the executor brings to ``infinipipe``; each imports what it needs inside, torch takes seconds."""

import typer


def register(app: typer.Typer) -> None:
    """Add the executor's commands."""
