"""What commands of the executor say when they cannot go on."""

from typing import NoReturn

import typer

from infinipipe_executor.errors import EXIT_FAILURE

EXECUTOR_EXTRA_MODULES = frozenset({"numpy", "safetensors", "torch"})


def fail(sentence: str, exit_code: int = EXIT_FAILURE) -> NoReturn:
    """Say what is wrong and leave."""
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(exit_code)


def fail_without(error: ModuleNotFoundError) -> NoReturn:
    """Leave where the executor's dependencies are not installed; any other missing module is a fault of ours."""
    if error.name is None or error.name.partition(".")[0] not in EXECUTOR_EXTRA_MODULES:
        raise error
    fail(f"this command needs {error.name}, which is not installed: pip install 'infinipipe[executor]'")
