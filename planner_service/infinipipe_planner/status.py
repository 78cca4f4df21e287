"""The one table from errors to gRPC statuses, and the interceptor that answers with it.

A client gets a status and a sentence, never a traceback; what nobody expected is logged here with its traceback and
answered as INTERNAL.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from infinipipe_contract.errors import InvalidPlanError, InvalidProfileError
from infinipipe_planner import errors, fair_queue, job_store, store_file

logger = logging.getLogger(__name__)


class InvalidRequestError(errors.PlannerError):
    """A request has a missing or senseless field."""


class TooManyWaitersError(errors.PlannerError):
    """As many callers wait for plans as may."""


class ShuttingDownError(errors.PlannerError):
    """The service is stopping and takes no more work."""


# The first entry that an error is an instance of holds.
STATUS_OF_ERROR: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidLengthsError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidOptionsError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidProfileError, grpc.StatusCode.INVALID_ARGUMENT),
    (job_store.JobNotFoundError, grpc.StatusCode.NOT_FOUND),
    (job_store.StepForgottenError, grpc.StatusCode.NOT_FOUND),
    (job_store.BatchChangedError, grpc.StatusCode.ALREADY_EXISTS),
    (job_store.GenerationError, grpc.StatusCode.FAILED_PRECONDITION),
    (job_store.TooManyJobsError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (job_store.StepNotPlannedError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.InfeasibleBatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SolverTimeoutError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (fair_queue.QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyWaitersError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ShuttingDownError, grpc.StatusCode.UNAVAILABLE),
    (store_file.StoreError, grpc.StatusCode.UNAVAILABLE),
    (errors.SolverLostError, grpc.StatusCode.INTERNAL),
    (InvalidPlanError, grpc.StatusCode.INTERNAL),
    (errors.PlannerError, grpc.StatusCode.INTERNAL),
)


RETRY_PAUSE_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of RESOURCE_EXHAUSTED that another attempt can cure: milliseconds to wait first (gRPC's A6)."""

PASSING_ERRORS = (fair_queue.QueueFullError, TooManyWaitersError)
"""What another attempt after a pause can cure."""

MAX_SENTENCE_CHARACTERS = 2_000
"""A status travels in the trailers, which gRPC limits to 8 KiB; an error may quote a value of any length."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client is told about an error."""

    code: grpc.StatusCode
    sentence: str


class AnsweredError(errors.PlannerError):
    """An error that was turned into its answer before, for example how planning a step failed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.sentence)
        self.answer = answer


def answer_to(error: Exception, doing: str) -> Answer:
    """Find what to tell a client about an error; log the ones that nobody expected.

    Args:
        error: What was raised.
        doing: What the service was doing, for the log and for the sentence about an unexpected error.
    """
    if isinstance(error, AnsweredError):
        return error.answer
    for kind, code in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return Answer(code, _shorten(str(error)))
    logger.error("%s failed", doing, exc_info=error)
    return Answer(
        grpc.StatusCode.INTERNAL, f"{doing} failed inside the planner ({type(error).__name__}); its log says more"
    )


def _shorten(sentence: str) -> str:
    if len(sentence) <= MAX_SENTENCE_CHARACTERS:
        return sentence
    return sentence[:MAX_SENTENCE_CHARACTERS] + " ..."


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Turns whatever a method raises into a status."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401  # grpc's own types of handlers differ between its versions
        """Wrap the method's handler; streams (health, reflection) are left alone."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method.rpartition("/")[2]

        async def answer(encoded: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401
            try:
                return await handler.unary_unary(_decode(handler.request_deserializer, encoded), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the boundary: nothing may reach the client as a traceback
                reply = answer_to(error, method)
                pause_ms = str(int(fair_queue.RETRY_PAUSE_S * 1000))
                trailer = ((RETRY_PAUSE_KEY, pause_ms),) if isinstance(error, PASSING_ERRORS) else ()
                await context.abort(reply.code, reply.sentence, trailer)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=None,  # gRPC would answer what cannot be decoded as a fault of the service
            response_serializer=handler.response_serializer,
        )


def _decode(deserializer: Callable[[bytes], Any], encoded: bytes) -> Any:  # noqa: ANN401
    try:
        return deserializer(encoded)
    except DecodeError:
        raise InvalidRequestError("the request is not a message of this method's type") from None
