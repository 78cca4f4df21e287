"""Counts calls by method and status; the outermost interceptor, so that calls that others refuse count, too."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from infinipipe.planner.v1 import planner_service_pb2
from infinipipe_planner.metrics import PlannerMetrics

_SERVICE = planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"]
_METHODS = {f"/{_SERVICE.full_name}/{method.name}": method.name for method in _SERVICE.methods}
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class MeteringInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Counts every call of the service's own methods when it ends.

    Args:
        metrics: Are told.
    """

    def __init__(self, metrics: PlannerMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401  # grpc's own types of handlers differ between its versions
        """Wrap the method's handler; health, reflection and methods that do not exist are left alone."""
        handler = await continuation(handler_call_details)
        method = _METHODS.get(handler_call_details.method)
        if handler is None or method is None:
            return handler
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._counted(handler.unary_unary, method), handler.request_deserializer, handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(
            self._counted(handler.stream_stream, method), handler.request_deserializer, handler.response_serializer
        )

    def _counted(self, answer: Callable[[Any, Any], Awaitable[Any]], method: str) -> Callable[[Any, Any], Any]:
        async def answer_and_count(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401
            code = grpc.StatusCode.UNKNOWN.name
            try:
                response = await answer(request, context)
                code = grpc.StatusCode.OK.name
                return response
            except asyncio.CancelledError:  # the caller went away, or their time was up
                code = grpc.StatusCode.CANCELLED.name
                raise
            except grpc.aio.AbortError:
                code = _name_of(context.code())
                raise
            finally:
                self._metrics.count_rpc(method, code)

        return answer_and_count


def _name_of(code: Any) -> str:  # noqa: ANN401  # a StatusCode or its number
    return str(code.name) if isinstance(code, grpc.StatusCode) else _CODE_NAMES.get(code, grpc.StatusCode.UNKNOWN.name)
