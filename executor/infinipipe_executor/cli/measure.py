"""`infinipipe profile measure`: the profile of a run, measured on this machine."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from infinipipe_contract.codec import profile_to_json
from infinipipe_executor.cli.messages import fail, fail_without
from infinipipe_executor.config import check_world, load_config
from infinipipe_executor.errors import EXIT_USAGE, ConfigError, ExecutorError, LayoutError


def measure(
    config: Annotated[Path, typer.Option(help="Configuration of the run (TOML): model, layout, data.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Measure this machine: time chunks of many contexts and lengths, fit the cost model, say how well it fits.

    A layout of several ranks: torchrun --nproc-per-node N --no-python infinipipe profile measure --config FILE.
    """
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO if rank == 0 else logging.WARNING)
    try:
        run = load_config(config)
        check_world(run.cluster)
        from infinipipe_executor.measuring import measure_machine  # noqa: PLC0415  # torch takes seconds

        profile = measure_machine(run)
    except ModuleNotFoundError as error:
        fail_without(error)
    except (ConfigError, LayoutError) as error:
        fail(str(error), EXIT_USAGE)
    except ExecutorError as error:
        fail(str(error))
    if rank:
        return
    text = profile_to_json(profile)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror} (--output)", EXIT_USAGE)
