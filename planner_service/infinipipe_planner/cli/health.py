"""`infinipipe health`: whether a planner serves, for probes and scripts."""

import json

import typer

from infinipipe_planner.cli.client import PlannerOption, call_service
from infinipipe_planner.cli.output import JsonOption, fail, planner_extra
from infinipipe_planner.config import DEFAULT_ADDRESS

CALL_TIMEOUT_S = 5.0


def health(writes_json: JsonOption = False, planner: PlannerOption = DEFAULT_ADDRESS) -> None:
    """Ask whether a planner serves (gRPC health); ends with code 0 when it does and 1 when it does not."""
    with planner_extra():
        from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415  # the planner's extra
    request = health_pb2.HealthCheckRequest()
    answer = call_service(planner, health_pb2_grpc.HealthStub, "Check", request, timeout_s=CALL_TIMEOUT_S)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    is_serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    if writes_json:
        typer.echo(json.dumps({"planner": planner, "is_serving": is_serving, "status": status}, indent=1))
    if not is_serving:
        fail(f"the planner at {planner} answers {status}")
    if not writes_json:
        typer.echo(status)
