"""`infinipipe profile`: profiles, the numbers of the cost model."""

from pathlib import Path
from typing import Annotated

import typer

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import read_hf_config
from infinipipe_planner.analytic.profile import HardwareError, build_profile
from infinipipe_planner.cli.model import (
    DEVICE_HELP,
    DEVICES_PER_NODE_HELP,
    MODEL_HELP,
    NODES_HELP,
    name_model,
    read_hardware,
)
from infinipipe_planner.cli.output import EXIT_USAGE, fail, write_result

profile = typer.Typer(no_args_is_help=True, help="Make profiles: the numbers of the cost model.")


@profile.callback()
def _hold() -> None:
    """Make profiles: the numbers of the cost model."""


@profile.command()
def analytic(
    model: Annotated[Path, typer.Option(help=MODEL_HELP)],
    device: Annotated[str, typer.Option(help=DEVICE_HELP)],
    nodes: Annotated[int, typer.Option(min=1, help=NODES_HELP)],
    devices_per_node: Annotated[int, typer.Option(min=1, help=DEVICES_PER_NODE_HELP)],
    pp: Annotated[int, typer.Option(min=1, help="Stages.")],
    sp: Annotated[int, typer.Option(min=1, help="Ranks of one stage; stages times ranks is all devices.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Write a profile from datasheet rates and stated efficiencies, without a machine."""
    try:
        hardware = read_hardware(device, nodes, devices_per_node)
        made = build_profile(read_hf_config(model).shape, hardware, pp, sp, model_name=name_model(model))
    except (ModelConfigError, HardwareError) as error:
        fail(str(error), EXIT_USAGE)
    write_result(profile_to_json(made), output)
