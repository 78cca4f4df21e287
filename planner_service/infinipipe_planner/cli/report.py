"""`infinipipe report`: a job as one page of HTML."""

from pathlib import Path
from typing import Annotated

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.cli.client import PlannerOption
from infinipipe_planner.cli.lookup import StepRecord, fetch_job, fetch_step, fetch_summaries, job_profile
from infinipipe_planner.cli.output import fail, working, write_result
from infinipipe_planner.config import DEFAULT_ADDRESS
from infinipipe_planner.measured import on_one_clock
from infinipipe_planner.report_page.page import render_page
from infinipipe_planner.report_page.view import JobView, StepView


def report(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write (HTML).")],
    last: Annotated[int, typer.Option(min=1, help="Newest steps to report on.")] = 200,
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Write a report of a job: timelines, memory, lengths, predicted against measured, the worst steps."""
    found = fetch_job(planner, job)
    summaries = fetch_summaries(planner, job)[-last:]
    if not summaries:
        fail(f"job {job} has no steps")
    profile = job_profile(found)
    with working("asking for plans ..."):
        steps = tuple(
            _view(fetch_step(planner, found, summary.step), profile)
            for summary in summaries
            if summary.state == pb.PLAN_STATE_READY
        )
    if not steps:
        fail(f"job {job}: none of its newest {len(summaries)} steps has a plan yet")
    view = JobView(
        name=job,
        generation=found.generation,
        profile=profile,
        context_tokens=found.spec.context_tokens,
        steps=steps,
        failures=tuple((s.step, s.failure) for s in summaries if s.state == pb.PLAN_STATE_FAILED),
    )
    write_result(render_page(view), output)
    measured_count = sum(bool(step.ranks) for step in steps)
    typer.echo(f"{output}: {len(steps)} steps, {measured_count} of them measured", err=True)


def _view(record: StepRecord, profile: Profile) -> StepView:
    planned = simulate(record.plan.pipelines, profile)
    return StepView(record.plan, planned, on_one_clock(record.ranks, planned))
