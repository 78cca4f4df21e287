"""Who calls: every call but those of health shows a token, and what it does is done for the token's principal.

A call that shows none, or one that is not known, is told just that, whatever it asks for: nobody learns from the answer
which methods, jobs or tokens there are. Entry points: ``AuthenticationInterceptor`` and ``caller``.
"""

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from infinipipe_contract.access import TOKEN_KEY, TOKEN_PREFIX
from infinipipe_planner.tokens import Tokens

HEALTH_PREFIX = "/grpc.health.v1.Health/"
"""Health needs no token: what probes a service holds no secrets, and learns no more than that it serves."""

REFUSAL = "token missing or not known"

NOBODY = ""
"""The principal of every call where no tokens are asked for; no token belongs to it."""

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default=NOBODY)


def caller() -> str:
    """Return the principal of the call that is being answered."""
    return _caller.get()


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets calls with a known token through, in their principal's name.

    Args:
        newest_tokens: Gives the tokens that hold now.
    """

    def __init__(self, newest_tokens: Callable[[], Tokens]) -> None:
        self._newest_tokens = newest_tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401  # grpc's own types of handlers differ between its versions
        """Find the caller, in whose context the method then runs, or answer in the method's place."""
        if handler_call_details.method.startswith(HEALTH_PREFIX):
            return await continuation(handler_call_details)
        shown = [value for key, value in handler_call_details.invocation_metadata or () if key == TOKEN_KEY]
        principal = None
        if len(shown) == 1 and isinstance(shown[0], str) and shown[0].startswith(TOKEN_PREFIX):
            principal = self._newest_tokens().find_principal(shown[0].removeprefix(TOKEN_PREFIX))
        if principal is None:
            return grpc.stream_stream_rpc_method_handler(_refuse)  # answers methods of every kind
        _caller.set(principal)
        return await continuation(handler_call_details)


async def _refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:  # noqa: ANN401
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
