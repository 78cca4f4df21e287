"""`infinipipe profile`: profiles, the numbers of the cost model."""

from pathlib import Path
from typing import Annotated

import typer

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import read_hf_config
from infinipipe_contract.model_flops import mean_attended_tokens
from infinipipe_planner.analytic.profile import DEFAULT_ATTENDED_TOKENS, HardwareError, build_profile
from infinipipe_planner.cli.inputs import InputError, read_lengths
from infinipipe_planner.cli.model import (
    DEVICE_HELP,
    DEVICES_PER_NODE_HELP,
    GRADIENT_POLICY_HELP,
    MODEL_HELP,
    NODES_HELP,
    GradientPolicy,
    name_model,
    read_hardware,
)
from infinipipe_planner.cli.output import EXIT_USAGE, fail, write_result
from infinipipe_planner.errors import InvalidLengthsError
from infinipipe_planner.lengths import check_lengths

LENGTHS_HELP = (
    "Lengths that the stages are divided for: JSON or one a line. Without them a token is taken to attend to "
    f"{DEFAULT_ATTENDED_TOKENS:,.0f} tokens in the mean."
)

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
    gradient_policy: Annotated[GradientPolicy, typer.Option(help=GRADIENT_POLICY_HELP)] = GradientPolicy.ZERO3,
    lengths: Annotated[Path | None, typer.Option(help=LENGTHS_HELP)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Write a profile from datasheet rates and stated efficiencies, without a machine."""
    try:
        hardware = read_hardware(device, nodes, devices_per_node)
        attended_tokens = DEFAULT_ATTENDED_TOKENS if lengths is None else _attended_tokens(lengths)
        shape = read_hf_config(model).shape
        made = build_profile(
            shape,
            hardware,
            pp,
            sp,
            model_name=name_model(model),
            attended_tokens=attended_tokens,
            shards_gradients=gradient_policy.shards_gradients,
        )
    except (InputError, InvalidLengthsError, ModelConfigError, HardwareError) as error:
        fail(str(error), EXIT_USAGE)
    write_result(profile_to_json(made), output)


def _attended_tokens(path: Path) -> float:
    lengths_tokens = read_lengths(path)
    check_lengths(lengths_tokens)
    return mean_attended_tokens(lengths_tokens)
