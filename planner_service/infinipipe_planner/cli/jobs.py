"""`infinipipe jobs`: the jobs of a planner."""

import json

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.cli.client import PlannerOption, call_planner
from infinipipe_planner.cli.json_records import job_record
from infinipipe_planner.cli.output import JsonOption, print_table
from infinipipe_planner.config import DEFAULT_ADDRESS


def jobs(writes_json: JsonOption = False, planner: PlannerOption = DEFAULT_ADDRESS) -> None:
    """List the jobs of a planner."""
    response: pb.ListJobsResponse = call_planner(planner, "ListJobs", pb.ListJobsRequest())
    if writes_json:
        typer.echo(json.dumps([job_record(job) for job in response.jobs], indent=1))
        return
    if not response.jobs:
        typer.echo(f"the planner at {planner} has no jobs", err=True)
        return
    has_replicas = any(job.spec.profile.cluster.dp_size > 1 for job in response.jobs)
    print_table(
        (
            "job",
            "gen",
            "profile",
            "dp x pp\nx sp" if has_replicas else "pp x sp",
            "context",
            "policy",
            "planned",
            "created",
        ),
        [_row(job, has_replicas=has_replicas) for job in response.jobs],
    )


def _row(job: pb.Job, *, has_replicas: bool) -> tuple[str, ...]:
    profile, cluster = job.spec.profile, job.spec.profile.cluster
    sizes: tuple[int, ...] = (cluster.pp_size, cluster.sp_size)
    if has_replicas:
        sizes = (cluster.dp_size or 1, *sizes)
    return (
        job.name,
        str(job.generation),
        profile.name or "-",
        " x ".join(map(str, sizes)),
        str(job.spec.context_tokens),
        job.spec.options.policy,
        f"{job.planned_step_count}/{job.submitted_step_count}",
        f"{job.create_time.ToDatetime():%Y-%m-%d %H:%M}Z",
    )
