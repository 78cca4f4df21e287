"""`infinipipe delete`: make a planner forget a job."""

from typing import Annotated

import typer

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.cli.client import PlannerOption, call_planner
from infinipipe_planner.config import DEFAULT_ADDRESS


def delete(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    planner: PlannerOption = DEFAULT_ADDRESS,
) -> None:
    """Forget a job, its plans and what was measured; an executor that still trains it ends."""
    call_planner(planner, "DeleteJob", pb.DeleteJobRequest(job=job))
