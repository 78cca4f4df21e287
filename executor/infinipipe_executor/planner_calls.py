"""Calls of the planning service: one connection a process, and attempts until there is an answer.

A planner that is away, or whose queue is full, is asked again with growing pauses until the time of the call is up. TLS
that fails before the planner ever answered is a mistake of the set-up and ends the call at once; later, certificates
may just be replaced, and it is waited for, too.

The channel is opened by the first call and belongs to the process that opened it, so a data-loading worker that is
forked later never touches it.
"""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import grpc

from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.access import ClientAccess, host_of
from infinipipe_executor.call_waiting import Waiting, wait_for_result
from infinipipe_executor.config.address import check_address
from infinipipe_executor.errors import PlannerRefusedError, PlannerUnavailableError, TokenRefusedError
from infinipipe_executor.planner_access import explain_handshake, open_channel

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
"""Pauses between attempts to reach the planner double from the first to the largest."""

RETRY_PAUSE_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of a refusal that another attempt can cure: milliseconds to wait first (gRPC's A6)."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.max_send_message_length", 16 * 2**20),
    # A planner whose machine is gone says nothing; only pings find out during a long wait.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # An answer to a ping that stays out counts after this; gRPC's own default, a minute, wins over the line above.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own pause grows to two minutes, so that a planner that is back would not be noticed.
    ("grpc.min_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
    ("grpc.initial_reconnect_backoff_ms", int(FIRST_PAUSE_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(MAX_PAUSE_S * 1000)),
    # The planner is a neighbour: a proxy for the way out of the cluster would not know it.
    ("grpc.enable_http_proxy", 0),
)


class PlannerCalls:
    """Calls a planner; several threads may do so side by side.

    Args:
        address: HOST:PORT of the planner.
        access: Certificates and token.

    Raises:
        ConfigError: If the address is not of that form.
    """

    def __init__(self, address: str, access: ClientAccess) -> None:
        check_address(address)
        self.address = address
        self._access = access
        self._was_answered = False
        self._channels: dict[int, grpc.Channel] = {}
        self._has_warned_of_name = False

    def call(
        self,
        method: str,
        request: object,
        timeout_s: float,
        refusal: type[PlannerRefusedError],
        on_wait: Callable[[float], None] | None = None,
    ) -> Any:  # noqa: ANN401  # each caller names its response
        """Call until an answer comes or the time is up.

        Args:
            method: Name of the rpc.
            request: Its request.
            timeout_s: Seconds to wait for a planner that is away, busy or at work.
            refusal: What is raised when the planner says no.
            on_wait: Called every few seconds of waiting with the seconds waited so far.

        Returns:
            The response of the rpc.

        Raises:
            PlannerUnavailableError: If there is no answer in time.
            TokenRefusedError: If the planner does not know the token, or wants one.
            PlannerRefusedError: As ``refusal``.
        """
        waiting = Waiting(timeout_s, on_wait)
        pause_s = FIRST_PAUSE_S
        trouble = ""
        while True:
            stub = planner_service_pb2_grpc.PlannerServiceStub(self._channel())  # type: ignore[no-untyped-call]  # generated
            left_s = waiting.left_s
            try:
                call = getattr(stub, method).future(request, timeout=left_s, metadata=self._access.metadata)
                response = wait_for_result(call, waiting)
                self._was_answered = True
                return response
            except grpc.RpcError as error:
                code, sentence = error.code(), error.details() or ""
                asked_pause_s = _asked_pause_s(error)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise TokenRefusedError(self._access.explain_refusal(self.address))
            if code is grpc.StatusCode.UNAVAILABLE:
                self._warn_of_unknown_name(sentence, timeout_s)
                reason = explain_handshake(self.address, self._access, waiting.left_s)
                if reason and not self._was_answered:
                    raise PlannerUnavailableError(reason)
                trouble = reason or (
                    f"no planner at {self.address} after {timeout_s:g} s: "
                    f"is `infinipipe serve` running there? ({sentence})"
                )
            elif asked_pause_s is not None:
                trouble = f"the planner at {self.address} is too busy for {method} after {timeout_s:g} s: {sentence}"
            elif code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise refusal(sentence or f"the planner at {self.address} answered {method} with {code.name}")
            elif not trouble or left_s > MAX_PAUSE_S:
                raise PlannerUnavailableError(
                    f"the planner at {self.address} did not answer {method} within {timeout_s:g} s"
                )
            if waiting.left_s <= 0:
                raise PlannerUnavailableError(trouble)
            waiting.sleep(max(pause_s, asked_pause_s or 0.0))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def close(self) -> None:
        """Close this process's channel; the next call opens another one."""
        channel = self._channels.pop(os.getpid(), None)
        if channel is not None:
            channel.close()

    def _channel(self) -> grpc.Channel:
        """Return this process's channel; a parent's one stays referenced, for even closing it would use its threads."""
        pid = os.getpid()
        if pid not in self._channels:
            self._channels[pid] = open_channel(self.address, self._access, CHANNEL_OPTIONS)
        return self._channels[pid]

    def _warn_of_unknown_name(self, sentence: str, timeout_s: float) -> None:
        """Say at once, and once, that the name of the host leads nowhere: most often it is misspelt."""
        if self._has_warned_of_name or "resol" not in sentence.lower():
            return
        host = host_of(self.address)
        try:
            socket.getaddrinfo(host, int(self.address.rpartition(":")[2]), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            self._has_warned_of_name = True
            logger.warning(
                "the name of the planner's host, %s, is not known here (%s); trying on for up to %g s (--planner)",
                host,
                error.strerror,
                timeout_s,
            )


def _asked_pause_s(error: Any) -> float | None:  # noqa: ANN401  # grpc's errors are calls, which its types do not say
    """Return the seconds that the planner asks to wait before another attempt; None when it asks for none."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    pauses_ms = [int(value) for key, value in error.trailing_metadata() or () if key == RETRY_PAUSE_KEY]
    return pauses_ms[0] / 1000 if pauses_ms else None
