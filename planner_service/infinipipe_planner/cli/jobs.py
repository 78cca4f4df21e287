"""`infinipipe jobs`: the jobs of a planner."""

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.cli.client import PlannerOption, call_planner
from infinipipe_planner.cli.output import print_table
from infinipipe_planner.config import DEFAULT_ADDRESS


def jobs(planner: PlannerOption = DEFAULT_ADDRESS) -> None:
    """List the jobs of a planner."""
    response: pb.ListJobsResponse = call_planner(planner, "ListJobs", pb.ListJobsRequest())
    if not response.jobs:
        typer.echo(f"the planner at {planner} has no jobs", err=True)
        return
    print_table(
        ("job", "gen", "profile", "pp x sp", "context", "policy", "planned", "created"),
        [_row(job) for job in response.jobs],
    )


def _row(job: pb.Job) -> tuple[str, ...]:
    profile = job.spec.profile
    return (
        job.name,
        str(job.generation),
        profile.name or "-",
        f"{profile.cluster.pp_size} x {profile.cluster.sp_size}",
        str(job.spec.context_tokens),
        job.spec.options.policy,
        f"{job.planned_step_count}/{job.submitted_step_count}",
        f"{job.create_time.ToDatetime():%Y-%m-%d %H:%M}Z",
    )
