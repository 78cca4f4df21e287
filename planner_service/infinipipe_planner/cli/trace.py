"""`infinipipe trace`: one step as a trace for Perfetto, planned and measured side by side."""

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.cli.client import PlannerOption
from infinipipe_planner.cli.inputs import InputError, read_plan, read_profile
from infinipipe_planner.cli.lookup import fetch_job, fetch_step, fetch_summaries, job_profile, require_planned
from infinipipe_planner.cli.output import EXIT_USAGE, fail, write_result
from infinipipe_planner.config import DEFAULT_ADDRESS
from infinipipe_planner.measured import MeasuredRank, on_one_clock
from infinipipe_planner.trace import build_trace


class _Subject(NamedTuple):
    """What is drawn: a plan, its cost model, what ranks measured, and a name for people."""

    plan: ExecutionPlan
    profile: Profile
    ranks: tuple[MeasuredRank, ...]
    name: str


def trace(
    job: Annotated[str | None, typer.Argument(metavar="[JOB", help="Name of the job.")] = None,
    step: Annotated[int | None, typer.Argument(metavar="STEP]", min=0, help="Training step, from 0.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan file (JSON), instead of JOB STEP.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Profile file (JSON) of the plan file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Write one step as a trace for Perfetto (https://ui.perfetto.dev)."""
    if job is not None and step is not None and plan is None and profile is None:
        subject = _ask(planner, job, step)
    elif plan is not None and profile is not None and job is None:
        subject = _read(plan, profile)
    else:
        fail("say what to trace: JOB STEP, or --plan FILE with --profile FILE", EXIT_USAGE)
    try:
        planned = simulate(subject.plan.pipelines, subject.profile)
    except InvalidPlanError as error:
        fail(f"{subject.name}: {error}", EXIT_USAGE)
    made = build_trace(subject.plan, planned, on_one_clock(subject.ranks, planned))
    write_result(json.dumps(made), output)
    if not subject.ranks:
        typer.echo(f"{subject.name}: nothing measured, the trace holds the plan alone", err=True)


def _ask(planner: str, job_name: str, step: int) -> _Subject:
    job = fetch_job(planner, job_name)
    require_planned(job_name, step, fetch_summaries(planner, job_name))
    record = fetch_step(planner, job, step)
    return _Subject(record.plan, job_profile(job), record.ranks, f"step {step} of job {job_name}")


def _read(plan_path: Path, profile_path: Path) -> _Subject:
    try:
        profile = read_profile(profile_path)
        return _Subject(read_plan(plan_path, profile), profile, (), str(plan_path))
    except InputError as error:
        fail(str(error), EXIT_USAGE)
