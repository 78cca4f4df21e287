"""`infinipipe plan`: plan one batch, here or on a planner."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import plan_from_proto, profile_to_proto
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.cli.client import call_planner
from infinipipe_planner.cli.dry_run import dry_run
from infinipipe_planner.cli.explain import explain
from infinipipe_planner.cli.inputs import InputError, read_lengths, read_profile
from infinipipe_planner.cli.model import (
    DEVICE_HELP,
    DEVICES_PER_NODE_HELP,
    GRADIENT_POLICY_HELP,
    MODEL_HELP,
    NODES_HELP,
    GradientPolicy,
)
from infinipipe_planner.cli.output import (
    EXIT_USAGE,
    JsonOption,
    OutputFormat,
    fail,
    format_plan,
    is_json,
    planner_extra,
    warn_extrapolation,
    working,
    write_result,
)
from infinipipe_planner.errors import InvalidLengthsError, InvalidOptionsError, PlannerError
from infinipipe_planner.lengths import MAX_SEQUENCES

Value = TypeVar("Value")

SOLVE_TIMEOUT_S = 600.0
DRY_RUN_PANEL = "Dry run"


def plan(
    profile: Annotated[Path | None, typer.Option(help="Profile file (JSON): the cost model.")] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(help='Lengths in tokens: {"lengths": [...]}, a JSON list, or one a line; "-" is standard input.'),
    ] = None,
    policy: Annotated[str, typer.Option(help="Policy by name.")] = "search",
    budget_s: Annotated[
        float, typer.Option(help="Seconds that policy search may take; 0: as the batch deserves, repeatable.")
    ] = 0.0,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    writes_json: JsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Planner to ask; without it, plan in this process.")
    ] = None,
    is_explained: Annotated[
        bool,
        typer.Option("--explain", help="Say what binds, and what more memory, recompute or slices would buy."),
    ] = False,
    is_dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Without a profile: does a model fit on a cluster, in which layout, and how fast.",
            rich_help_panel=DRY_RUN_PANEL,
        ),
    ] = False,
    model: Annotated[Path | None, typer.Option(help=MODEL_HELP, rich_help_panel=DRY_RUN_PANEL)] = None,
    device: Annotated[str | None, typer.Option(help=DEVICE_HELP, rich_help_panel=DRY_RUN_PANEL)] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help=NODES_HELP, rich_help_panel=DRY_RUN_PANEL)] = None,
    devices_per_node: Annotated[
        int | None, typer.Option(min=1, help=DEVICES_PER_NODE_HELP, rich_help_panel=DRY_RUN_PANEL)
    ] = None,
    gradient_policy: Annotated[
        GradientPolicy | None,
        typer.Option(help=f"{GRADIENT_POLICY_HELP} [default: zero3]", rich_help_panel=DRY_RUN_PANEL),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Longest sequence of made-up lengths, in tokens.", rich_help_panel=DRY_RUN_PANEL),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SEQUENCES, help="Number of made-up lengths.", rich_help_panel=DRY_RUN_PANEL),
    ] = None,
) -> None:
    """Plan one batch and show the plan."""
    output_format = OutputFormat.JSON if is_json(output_format, writes_json=writes_json) else OutputFormat.TEXT
    if is_dry_run:
        _refuse(
            {
                "--profile": profile,
                "--server": server,
                "--explain": is_explained or None,
                "--budget-s": budget_s or None,
            },
            "a dry run makes its own profiles, in this process",
        )
        dry_run(
            model=_require(model, "--model"),
            device=_require(device, "--device"),
            nodes=_require(nodes, "--nodes"),
            devices_per_node=_require(devices_per_node, "--devices-per-node"),
            gradient_policy=gradient_policy or GradientPolicy.ZERO3,
            lengths=lengths,
            context=context,
            sequences=sequences,
            policy=policy,
            output_format=output_format,
            output=output,
        )
        return
    only_dry = {
        "--model": model,
        "--device": device,
        "--nodes": nodes,
        "--devices-per-node": devices_per_node,
        "--gradient-policy": gradient_policy,
    }
    _refuse({**only_dry, "--context": context, "--sequences": sequences}, "it belongs to --dry-run")
    try:
        cost_model = read_profile(_require(profile, "--profile"))
        lengths_tokens = read_lengths(_require(lengths, "--lengths"))
    except InputError as error:
        fail(str(error), EXIT_USAGE)
    warn_extrapolation(cost_model, lengths_tokens)
    if is_explained:
        _refuse({"--server": server}, "--explain plans in this process")
        _refuse({"--budget-s": budget_s or None}, "--explain compares repeatable plans")
        explain(lengths_tokens, cost_model, policy, output_format, output)
        return
    with working("planning ..."):
        if server is None:
            made = _plan_here(lengths_tokens, cost_model, policy, budget_s)
        else:
            made = _plan_there(server, lengths_tokens, cost_model, policy, budget_s)
    write_result(format_plan(made, output_format), output)


def _require(value: Value | None, option: str) -> Value:
    if value is None:
        fail(f"missing option {option}", EXIT_USAGE)
    return value


def _refuse(options: Mapping[str, object], reason: str) -> None:
    for option, value in options.items():
        if value is not None:
            fail(f"{option} is out of place: {reason}", EXIT_USAGE)


def _plan_here(lengths_tokens: list[int], profile: Profile, policy: str, budget_s: float) -> ExecutionPlan:
    with planner_extra():
        from infinipipe_planner.options import PlanOptions  # noqa: PLC0415  # brings SCIP, see register
        from infinipipe_planner.solve import solve_plan  # noqa: PLC0415
    try:
        return solve_plan(lengths_tokens, profile, PlanOptions(policy=policy, budget_s=budget_s))
    except (InvalidLengthsError, InvalidOptionsError) as error:
        fail(str(error), EXIT_USAGE)
    except (PlannerError, InvalidPlanError) as error:
        fail(str(error))


def _plan_there(
    address: str, lengths_tokens: list[int], profile: Profile, policy: str, budget_s: float
) -> ExecutionPlan:
    request = pb.SolvePlanRequest(
        profile=profile_to_proto(profile),
        options=pb.PlanOptions(policy=policy, budget_s=budget_s),
        lengths_tokens=lengths_tokens,
    )
    response: pb.SolvePlanResponse = call_planner(address, "SolvePlan", request, timeout_s=SOLVE_TIMEOUT_S)
    try:
        return plan_from_proto(response.plan)
    except InvalidPlanError as error:
        fail(f"{error} (from the planner at {address})")
