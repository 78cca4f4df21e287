"""`infinipipe plan`: plan one batch, here or on a planner."""

from pathlib import Path
from typing import Annotated

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import plan_from_proto, profile_to_proto
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.cli.client import call_planner
from infinipipe_planner.cli.inputs import InputError, read_lengths, read_profile
from infinipipe_planner.cli.output import (
    EXIT_USAGE,
    OutputFormat,
    fail,
    format_plan,
    planner_extra,
    working,
    write_result,
)
from infinipipe_planner.errors import InvalidLengthsError, InvalidOptionsError, PlannerError

SOLVE_TIMEOUT_S = 600.0


def plan(
    profile: Annotated[Path, typer.Option(help="Profile file (JSON): the cost model.")],
    lengths: Annotated[
        Path,
        typer.Option(help='Lengths in tokens: {"lengths": [...]}, a JSON list, or one a line; "-" is standard input.'),
    ],
    policy: Annotated[str, typer.Option(help="Policy by name.")] = "paper",
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Planner to ask; without it, plan in this process.")
    ] = None,
) -> None:
    """Plan one batch and show the plan."""
    try:
        cost_model, lengths_tokens = read_profile(profile), read_lengths(lengths)
    except InputError as error:
        fail(str(error), EXIT_USAGE)
    with working("planning ..."):
        if server is None:
            made = _plan_here(lengths_tokens, cost_model, policy)
        else:
            made = _plan_there(server, lengths_tokens, cost_model, policy)
    write_result(format_plan(made, output_format), output)


def _plan_here(lengths_tokens: list[int], profile: Profile, policy: str) -> ExecutionPlan:
    with planner_extra():
        from infinipipe_planner.options import PlanOptions  # noqa: PLC0415  # brings SCIP, see register
        from infinipipe_planner.solve import solve_plan  # noqa: PLC0415
    try:
        return solve_plan(lengths_tokens, profile, PlanOptions(policy=policy))
    except (InvalidLengthsError, InvalidOptionsError) as error:
        fail(str(error), EXIT_USAGE)
    except (PlannerError, InvalidPlanError) as error:
        fail(str(error))


def _plan_there(address: str, lengths_tokens: list[int], profile: Profile, policy: str) -> ExecutionPlan:
    request = pb.SolvePlanRequest(
        profile=profile_to_proto(profile), options=pb.PlanOptions(policy=policy), lengths_tokens=lengths_tokens
    )
    response: pb.SolvePlanResponse = call_planner(address, "SolvePlan", request, timeout_s=SOLVE_TIMEOUT_S)
    return plan_from_proto(response.plan)
