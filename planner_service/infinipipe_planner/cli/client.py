"""How commands talk to the planning service: one call, one answer or one sentence."""

from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import grpc
import typer
from google.protobuf.message import Message

from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.access import ClientAccess
from infinipipe_planner.cli.access import current_access, explain_handshake, open_channel
from infinipipe_planner.cli.output import EXIT_FAILURE, EXIT_USAGE, fail
from infinipipe_planner.config import MAX_MESSAGE_BYTES, InvalidAddressError, parse_address

CALL_TIMEOUT_S = 10.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The planner is a neighbour: a proxy for the way out of the cluster would not know it.
    ("grpc.enable_http_proxy", 0),
)

PlannerOption = Annotated[
    str,
    typer.Option("--planner", envvar="INFINIPIPE_PLANNER", metavar="HOST:PORT", help="Address of the planner."),
]


def call_planner(address: str, method: str, request: Message, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:  # noqa: ANN401  # each caller names its response
    """Call a method of the planner; leave with a sentence when there is no answer.

    Args:
        address: HOST:PORT of the planner.
        method: Name of the RPC.
        request: Its request.
        timeout_s: Seconds to wait for the answer.

    Returns:
        The RPC's response.
    """
    return call_service(address, planner_service_pb2_grpc.PlannerServiceStub, method, request, timeout_s=timeout_s)


def call_service(
    address: str, stub_type: Callable[[grpc.Channel], Any], method: str, request: Message, *, timeout_s: float
) -> Any:  # noqa: ANN401  # each caller names its response
    """Call a method of any service at the planner's address; see ``call_planner``."""
    try:
        parse_address(address)
    except InvalidAddressError as error:
        fail(str(error), EXIT_USAGE)
    access = current_access(address)
    with open_channel(address, access, CHANNEL_OPTIONS) as channel:
        try:
            return getattr(stub_type(channel), method)(request, timeout=timeout_s, metadata=access.metadata)
        except grpc.RpcError as error:
            _leave(address, access, timeout_s, error.code(), error.details() or "")


def _leave(address: str, access: ClientAccess, timeout_s: float, code: grpc.StatusCode, sentence: str) -> NoReturn:
    if code is grpc.StatusCode.UNAUTHENTICATED:
        fail(access.explain_refusal(address))
    if code is grpc.StatusCode.UNAVAILABLE:
        reason = explain_handshake(address, access)
        fail(reason or f"no planner at {address}: is `infinipipe serve` running there? ({sentence})")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        fail(f"the planner at {address} did not answer within {timeout_s:g} s")
    exit_code = EXIT_USAGE if code is grpc.StatusCode.INVALID_ARGUMENT else EXIT_FAILURE
    fail(sentence or f"the planner at {address} answered {code.name}", exit_code)
