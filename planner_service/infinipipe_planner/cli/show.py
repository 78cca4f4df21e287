"""`infinipipe show`: one step's plan, its memory over time, and what the ranks measured when they ran it."""

import json
import shutil
from typing import Annotated

import typer

from infinipipe_contract.simulate import simulate
from infinipipe_contract.text import format_bytes
from infinipipe_planner.cli.client import PlannerOption
from infinipipe_planner.cli.json_records import show_record
from infinipipe_planner.cli.lookup import fetch_job, fetch_step, fetch_summaries, job_profile, require_planned
from infinipipe_planner.cli.output import JsonOption, OutputFormat, format_plan, is_json, print_table
from infinipipe_planner.config import DEFAULT_ADDRESS
from infinipipe_planner.measured import MeasuredRank
from infinipipe_planner.memory_curves import memory_lines


def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    step: Annotated[int, typer.Argument(metavar="STEP", min=0, help="Training step, from 0.")],
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    writes_json: JsonOption = False,
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Show the plan of one step of a job."""
    found = fetch_job(planner, job)
    require_planned(job, step, fetch_summaries(planner, job))
    plan, ranks = fetch_step(planner, found, step)
    profile = job_profile(found)
    planned = simulate(plan.pipelines, profile)
    if is_json(output_format, writes_json=writes_json):
        typer.echo(json.dumps(show_record(plan, planned, profile, ranks), indent=1))
        return
    typer.echo(format_plan(plan, OutputFormat.TEXT))
    typer.echo("")
    typer.echo("\n".join(memory_lines(planned, profile, width=shutil.get_terminal_size().columns)))
    if ranks:
        typer.echo("")
        has_replicas = plan.replica_count > 1
        planned_bytes = {(stage.replica_index, stage.stage_index): stage.peak_bytes for stage in planned.stages}
        where = ("rank", "replica", "stage") if has_replicas else ("rank", "stage")
        print_table(
            (*where, "step s", "busy s", "plan wait s", "peak memory", "planned", "off", "loss"),
            [
                _row(rank, planned_bytes[rank.replica_index, rank.stage_index], has_replicas=has_replicas)
                for rank in ranks
            ],
        )


def _row(rank: MeasuredRank, planned_bytes: float, *, has_replicas: bool) -> tuple[str, ...]:
    return (
        str(rank.rank),
        *((str(rank.replica_index),) if has_replicas else ()),
        str(rank.stage_index),
        f"{rank.step_s:.3f}",
        f"{rank.busy_s:.3f}",
        f"{rank.plan_wait_s:.3f}",
        format_bytes(rank.peak_bytes) if rank.peak_bytes else "-",
        format_bytes(planned_bytes),
        f"{rank.peak_bytes / planned_bytes - 1:+.1%}" if rank.peak_bytes and planned_bytes else "-",
        "-" if rank.loss is None else f"{rank.loss:.4f}",
    )
