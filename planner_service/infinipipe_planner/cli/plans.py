"""`infinipipe plans`: the steps of a job."""

import json
from typing import Annotated

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.cli.client import PlannerOption, call_planner
from infinipipe_planner.cli.json_records import STATE_WORDS, step_record
from infinipipe_planner.cli.output import JsonOption, print_table
from infinipipe_planner.config import DEFAULT_ADDRESS


def plans(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    writes_json: JsonOption = False,
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """List the steps of a job, predicted beside measured."""
    response: pb.ListPlansResponse = call_planner(planner, "ListPlans", pb.ListPlansRequest(job=job))
    if writes_json:
        typer.echo(json.dumps([step_record(summary) for summary in response.plans], indent=1))
        return
    if not response.plans:
        typer.echo(f"job {job} has no steps", err=True)
        return
    print_table(
        ("step", "state", "seqs", "tokens", "chunks", "pipes", "K", "plan s", "real s", "bubble", "solve s"),
        [_row(summary) for summary in response.plans],
    )
    for summary in response.plans:
        if summary.failure:
            typer.echo(f"step {summary.step} failed: {summary.failure}")


def _row(summary: pb.PlanSummary) -> tuple[str, ...]:
    head = (
        str(summary.step),
        STATE_WORDS.get(summary.state, "unknown"),
        str(summary.sequence_count),
        str(summary.token_count),
    )
    if summary.state != pb.PLAN_STATE_READY:
        return (*head, *["-"] * 7)
    return (
        *head,
        str(summary.chunk_count),
        str(summary.pipeline_count),
        str(summary.slice_count),
        f"{summary.makespan_s:.3f}",
        f"{summary.measured_s:.3f}" if summary.measured_s else "-",
        f"{summary.bubble_ratio:.1%}",
        f"{summary.solve_s:.2f}",
    )
