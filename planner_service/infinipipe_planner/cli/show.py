"""`infinipipe show`: one step's plan, and what the ranks measured when they ran it."""

from typing import Annotated

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import plan_from_proto
from infinipipe_contract.text import format_bytes
from infinipipe_planner.cli.client import PlannerOption, call_planner
from infinipipe_planner.cli.lookup import require_planned
from infinipipe_planner.cli.output import OutputFormat, format_plan, print_table
from infinipipe_planner.config import DEFAULT_ADDRESS


def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    step: Annotated[int, typer.Argument(metavar="STEP", min=0, help="Training step, from 0.")],
    output_format: Annotated[OutputFormat, typer.Option("--format", help="For people or for programs.")] = (
        OutputFormat.TEXT
    ),
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Show the plan of one step of a job."""
    found: pb.GetJobResponse = call_planner(planner, "GetJob", pb.GetJobRequest(job=job))
    listed: pb.ListPlansResponse = call_planner(planner, "ListPlans", pb.ListPlansRequest(job=job))
    require_planned(job, step, listed.plans)
    request = pb.GetPlanRequest(job=job, generation=found.job.generation, step=step)
    response: pb.GetPlanResponse = call_planner(planner, "GetPlan", request)
    plan = plan_from_proto(response.plan)
    typer.echo(format_plan(plan, output_format))
    if response.reports and output_format is OutputFormat.TEXT:
        typer.echo("")
        has_replicas = plan.replica_count > 1
        where = ("rank", "replica", "stage") if has_replicas else ("rank", "stage")
        print_table(
            (*where, "step s", "busy s", "plan wait s", "peak memory", "loss"),
            [_row(report, has_replicas=has_replicas) for report in response.reports],
        )


def _row(report: pb.RankReport, *, has_replicas: bool) -> tuple[str, ...]:
    return (
        str(report.rank),
        *((str(report.replica_index),) if has_replicas else ()),
        str(report.stage_index),
        f"{report.step_s:.3f}",
        f"{report.busy_s:.3f}",
        f"{report.plan_wait_s:.3f}",
        format_bytes(report.peak_bytes) if report.peak_bytes else "-",
        f"{report.loss:.4f}" if report.HasField("loss") else "-",
    )
