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
from infinipipe_planner import errors, fair_queue, job_errors, store_file, waiting_room
from infinipipe_planner.authentication import caller
from infinipipe_planner.job_records import JobId
from infinipipe_planner.logs import about

logger = logging.getLogger(__name__)


class InvalidRequestError(errors.PlannerError):
    """A request has a missing or senseless field."""


class ShuttingDownError(errors.PlannerError):
    """The service is stopping and takes no more work."""


# The first entry that an error is an instance of holds.
STATUS_OF_ERROR: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidLengthsError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidOptionsError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidProfileError, grpc.StatusCode.INVALID_ARGUMENT),
    (job_errors.JobNotFoundError, grpc.StatusCode.NOT_FOUND),
    (job_errors.StepForgottenError, grpc.StatusCode.NOT_FOUND),
    (job_errors.BatchChangedError, grpc.StatusCode.ALREADY_EXISTS),
    (job_errors.GenerationError, grpc.StatusCode.FAILED_PRECONDITION),
    (job_errors.TooManyJobsError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (job_errors.StepNotPlannedError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.InfeasibleBatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SolverTimeoutError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (fair_queue.QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (waiting_room.TooManyWaitersError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ShuttingDownError, grpc.StatusCode.UNAVAILABLE),
    (store_file.StoreError, grpc.StatusCode.UNAVAILABLE),
    (errors.SolverLostError, grpc.StatusCode.INTERNAL),
    (InvalidPlanError, grpc.StatusCode.INTERNAL),
    (errors.PlannerError, grpc.StatusCode.INTERNAL),
)


RETRY_PAUSE_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of RESOURCE_EXHAUSTED that another attempt can cure: milliseconds to wait first (gRPC's A6)."""

PASSING_ERRORS = (fair_queue.QueueFullError, waiting_room.TooManyWaitersError)
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


Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


def answer_to(error: Exception, doing: str, log: Log = logger) -> Answer:
    """Find what to tell a client about an error; log the ones that nobody expected.

    Args:
        error: What was raised.
        doing: What the service was doing, for the log and for the sentence about an unexpected error.
        log: Where to log; one that names job, generation and step where they are known.
    """
    if isinstance(error, AnsweredError):
        return error.answer
    for kind, code in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return Answer(code, _shorten(str(error)))
    log.error("%s failed", doing, exc_info=error)
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
            request = None
            try:
                request = _decode(handler.request_deserializer, encoded)
                return await handler.unary_unary(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # the boundary: nothing may reach the client as a traceback
                reply = answer_to(error, method, _log_about(request))
                pause_ms = str(int(fair_queue.RETRY_PAUSE_S * 1000))
                trailer = ((RETRY_PAUSE_KEY, pause_ms),) if isinstance(error, PASSING_ERRORS) else ()
                await context.abort(reply.code, reply.sentence, trailer)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=None,  # gRPC would answer what cannot be decoded as a fault of the service
            response_serializer=handler.response_serializer,
        )


def _log_about(request: object) -> Log:
    """Return a logger that names what a request is about."""
    job = getattr(request, "job", "")
    if not (job and job.isprintable()):  # what is logged has not been checked
        return logger
    job_id = JobId(caller(), _shorten(job))
    return about(logger, job_id, getattr(request, "generation", None), getattr(request, "step", None))


def _decode(deserializer: Callable[[bytes], Any], encoded: bytes) -> Any:  # noqa: ANN401
    try:
        return deserializer(encoded)
    except DecodeError:
        raise InvalidRequestError("the request is not a message of this method's type") from None
