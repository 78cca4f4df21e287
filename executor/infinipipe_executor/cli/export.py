"""`infinipipe export`: a checkpoint of a run becomes a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from infinipipe_executor.cli.messages import fail, fail_without
from infinipipe_executor.errors import EXIT_USAGE, ExecutorError


def export(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of one checkpoint.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to make.", show_default=False)],
) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, without the run and without a GPU."""
    try:
        from infinipipe_executor.model.export import export_checkpoint  # noqa: PLC0415  # torch takes seconds
    except ModuleNotFoundError as error:
        fail_without(error)
    try:
        report = export_checkpoint(checkpoint, output, tell=typer.echo)
    except ExecutorError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror or error}")
    files = "one file" if report.file_count == 1 else f"{report.file_count} files"
    typer.echo(
        f"{output}: {report.tensor_count} tensors, {report.written_bytes:,} bytes, in {files}; "
        f"{_describe_tokenizer(report.tokenizer, report.copied)}"
    )


def _describe_tokenizer(tokenizer: Path | None, copied: tuple[str, ...]) -> str:
    if copied:
        return f"tokenizer: {', '.join(copied)}"
    if tokenizer is None:
        return "no tokenizer: the run was given none"
    return f"no tokenizer: {tokenizer} is not there any more"
