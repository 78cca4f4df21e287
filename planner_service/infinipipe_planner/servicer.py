"""The RPCs of the planning service.

A submitted batch is solved by a task of its own; whoever asks for the plan waits on the job until the task has left a
result in the store, the job is deleted or a new generation opens. Jobs take turns at the solver (``fair_queue.py``).
Everything here runs on one event loop and nothing here computes for long: solving happens in the solver's processes,
encoding in a thread. What the store holds is planned on after a restart (``resume``).
"""

# ruff: noqa: ARG002, N802  # gRPC names the methods and passes a context to each

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import plan_to_proto
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner import messages
from infinipipe_planner.authentication import caller
from infinipipe_planner.config import MAX_REPORT_BYTES, ServerConfig
from infinipipe_planner.fair_queue import FairQueue, Ticket
from infinipipe_planner.job_errors import JobNotFoundError
from infinipipe_planner.job_records import (
    Batch,
    FailedStep,
    JobId,
    JobSpec,
    PlanFigures,
    PlannedStep,
    StoredReports,
    StoredStep,
)
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.lengths import check_lengths
from infinipipe_planner.logs import about
from infinipipe_planner.metrics import PlannerMetrics
from infinipipe_planner.solve_request import SolveRequest
from infinipipe_planner.status import Answer, AnsweredError, ShuttingDownError, answer_to
from infinipipe_planner.store_file import StoreError
from infinipipe_planner.waiting_room import WaitingRoom

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
StepKey = tuple[JobId, int, int]

NO_JOB = ""
"""What a batch without a job is queued under; no job has this name."""

STORE_RETRY_PAUSE_S = 1.0
"""Seconds between attempts to keep a plan while the store cannot be written."""


class Solver(Protocol):
    """What the service needs of a solver: ``SolverPool`` or ``LocalSolver``, behind a ``FallbackSolver``."""

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        """Plan one batch without blocking the event loop."""
        ...


@dataclass(frozen=True, slots=True)
class _Solving:
    """A step that is being planned: the task that does it and its place in the queue."""

    task: asyncio.Task[None]
    ticket: Ticket


class PlannerServicer(planner_service_pb2_grpc.PlannerServiceServicer):
    """Answers the RPCs; ``planner_service.proto`` says what each promises.

    Args:
        solver: Plans batches.
        store: Holds jobs, plans and reports.
        queue: Decides whose batch is solved next.
        metrics: Are told what happens.
        config: Limits of waiting callers and of a solve.
    """

    def __init__(
        self, solver: Solver, store: JobStore, queue: FairQueue, metrics: PlannerMetrics, config: ServerConfig
    ) -> None:
        self._solver = solver
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self._max_solve_s = config.max_solve_s
        self._waiting_room = WaitingRoom(config.max_waiters)
        self._solving: dict[StepKey, _Solving] = {}
        self._store_errors: dict[StepKey, StoreError] = {}
        self._is_closed = False
        metrics.count_jobs(store.count_jobs())

    @property
    def waiter_count(self) -> int:
        """Callers that wait for plans; may be asked for in any thread."""
        return self._waiting_room.waiter_count

    def resume(self) -> int:
        """Plan the steps that were submitted to an earlier run of the service and not planned; returns their count."""
        unfinished = self._store.list_unfinished()
        for entry in unfinished:
            self._begin((entry.job.id, entry.job.generation, entry.step), entry.job.spec, entry.batch)
        return len(unfinished)

    async def CreateJob(self, request: pb.CreateJobRequest, context: Context) -> pb.CreateJobResponse:
        """Create a job or open its next generation."""
        self._require_open()
        job_id = _read_job_id(request.job)
        job = self._store.open_generation(job_id, messages.read_job_spec(request.spec, self._max_solve_s), time.time())
        self._drop_work(job_id)
        self._metrics.forget_job(job_id)
        self._metrics.count_jobs(self._store.count_jobs())
        about(logger, job_id, job.generation).info("opened, policy %s", job.spec.options.policy)
        return pb.CreateJobResponse(job=messages.write_job(job))

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Return a job."""
        return pb.GetJobResponse(job=messages.write_job(self._store.find_job(_read_job_id(request.job))))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """List the caller's jobs."""
        return pb.ListJobsResponse(jobs=map(messages.write_job, self._store.list_jobs(caller())))

    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Context) -> pb.DeleteJobResponse:
        """Forget a job; whoever waits for its plans is told."""
        job_id = _read_job_id(request.job)
        self._store.delete_job(job_id)
        self._drop_work(job_id)
        self._metrics.forget_job(job_id)
        self._metrics.count_jobs(self._store.count_jobs())
        about(logger, job_id).info("deleted")
        return pb.DeleteJobResponse()

    async def SubmitBatch(self, request: pb.SubmitBatchRequest, context: Context) -> pb.SubmitBatchResponse:
        """Take a batch in and start planning it."""
        self._require_open()
        job_id, step = _read_job_id(request.job), messages.read_step(request.step)
        spec = self._store.find_generation(job_id, request.generation).spec
        check_lengths(request.lengths_tokens, context_tokens=spec.context_tokens)
        lengths_tokens = tuple(request.lengths_tokens)
        target_token_count = messages.read_target_token_count(request, sum(lengths_tokens))
        batch = messages.describe_batch(lengths_tokens, target_token_count)
        key = (job_id, request.generation, step)
        if self._store.find_step(job_id, request.generation, step) is None:
            self._queue.require_room(job_id)
        if self._store.add_step(job_id, request.generation, step, batch):
            self._begin(key, spec, batch)
            self._drop_forgotten(job_id, request.generation)
        return pb.SubmitBatchResponse(queue_position=self._queue_position(key))

    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.GetPlanResponse:
        """Wait for a plan; the call ends with the caller's deadline."""
        job_id, step = _read_job_id(request.job), messages.read_step(request.step)
        started_s = time.monotonic()
        stored = await self._wait_for_result(job_id, request.generation, step)
        if isinstance(stored.result, FailedStep):
            raise AnsweredError(Answer(grpc.StatusCode[stored.result.status_name], stored.result.sentence))
        if request.HasField("after_rank"):
            return messages.write_plan(None, self._load_reports(job_id, request.generation, step, request.after_rank))
        self._metrics.plan_waited(time.monotonic() - started_s)
        return messages.write_plan(
            self._store.load_plan(job_id, request.generation, step),
            self._load_reports(job_id, request.generation, step, -1),
        )

    async def ListPlans(self, request: pb.ListPlansRequest, context: Context) -> pb.ListPlansResponse:
        """List the kept steps of a job."""
        steps = self._store.list_steps(_read_job_id(request.job))
        return pb.ListPlansResponse(plans=map(messages.write_summary, steps))

    async def SolvePlan(self, request: pb.SolvePlanRequest, context: Context) -> pb.SolvePlanResponse:
        """Plan lengths without a job."""
        self._require_open()
        profile = messages.read_profile(request.HasField("profile"), request.profile)
        options = messages.read_options(request.options, self._max_solve_s)
        check_lengths(request.lengths_tokens)
        place = JobId(caller(), NO_JOB)
        self._queue.require_room(place)
        ticket = self._queue.enter(place)
        try:
            await ticket.turn.wait()
            plan = await self._solver.solve(SolveRequest(tuple(request.lengths_tokens), profile, options))
        finally:
            self._queue.leave(ticket)
        return pb.SolvePlanResponse(plan=await asyncio.to_thread(plan_to_proto, plan))

    async def ReportStep(self, request: pb.ReportStepRequest, context: Context) -> pb.ReportStepResponse:
        """Keep what a rank measured."""
        job_id, step = _read_job_id(request.job), messages.read_step(request.step)
        report = messages.read_report(request.report)
        self._store.add_report(job_id, request.generation, step, request.report.rank, report)
        reported = self._store.find_step(job_id, request.generation, step)
        if reported is not None and isinstance(reported.result, PlanFigures):
            self._metrics.step_measured(job_id, step, reported.result.makespan_s, reported.measured_s)
        return pb.ReportStepResponse()

    async def drain(self, timeout_s: float) -> None:
        """Take no more work, let started solves finish for a while, then wake every waiter with a status.

        Args:
            timeout_s: Seconds to wait for solves; what is not done then is dropped.
        """
        self._is_closed = True
        self._waiting_room.announce_all()
        if self._solving:
            await asyncio.wait([solving.task for solving in self._solving.values()], timeout=timeout_s)
        for solving in self._solving.values():
            solving.task.cancel()
        self._solving.clear()
        self._waiting_room.announce_all()

    def _begin(self, key: StepKey, spec: JobSpec, batch: Batch) -> None:
        """Let a task plan a step when the job's turn comes."""
        ticket = self._queue.enter(key[0])
        task = asyncio.create_task(self._plan_step(key, spec, batch, ticket))
        task.add_done_callback(lambda _: self._queue.leave(ticket))  # also when it is dropped before it began
        self._solving[key] = _Solving(task, ticket)

    async def _plan_step(self, key: StepKey, spec: JobSpec, batch: Batch, ticket: Ticket) -> None:
        """Plan one step and leave the result, a plan or a failure, in the store."""
        job_id, generation, step = key
        log = about(logger, job_id, generation, step)
        result: PlannedStep | FailedStep
        submitted_s = time.monotonic()
        await ticket.turn.wait()
        started_s = time.monotonic()
        self._metrics.queue_waited(started_s - submitted_s)
        try:
            plan = await self._solver.solve(
                SolveRequest(
                    batch.lengths_tokens,
                    spec.profile,
                    spec.options,
                    job=job_id.name,
                    generation=generation,
                    step=step,
                    target_token_count=batch.target_token_count,
                )
            )
            result = await asyncio.to_thread(messages.encode_plan, plan)
            self._metrics.step_planned(job_id, step, result.figures, time.monotonic() - started_s)
            log.info("planned in %.2f s", result.figures.solve_s)
        except Exception as error:  # a failed solve is a value: every waiter gets the same status
            answer = answer_to(error, f"planning step {step} of job {job_id.name!r}", log)
            result = FailedStep(answer.code.name, answer.sentence)
            self._metrics.step_failed(answer.code.name)
            log.warning("failed: %s", answer.sentence)
        self._queue.leave(ticket)
        if self._is_current(key):
            await self._keep(key, result)

    async def _keep(self, key: StepKey, result: PlannedStep | FailedStep) -> None:
        """Write a result to the store; while that fails, whoever asks is told why, and it is tried again."""
        job_id = key[0]
        try:
            while True:
                try:
                    self._store.finish_step(*key, result)
                except StoreError as error:
                    if key not in self._store_errors:
                        about(logger, *key).error("is solved and cannot be kept: %s", error)
                    self._store_errors[key] = error
                    self._waiting_room.announce(job_id)
                    await asyncio.sleep(STORE_RETRY_PAUSE_S)
                else:
                    break
        finally:
            self._store_errors.pop(key, None)
            if self._is_current(key):
                del self._solving[key]
        self._waiting_room.announce(job_id)

    def _is_current(self, key: StepKey) -> bool:
        """Tell whether the running task still plans the step; the step may have been dropped while it ran."""
        solving = self._solving.get(key)
        return solving is not None and solving.task is asyncio.current_task()

    async def _wait_for_result(self, job_id: JobId, generation: int, step: int) -> StoredStep:
        """Wait until the step was submitted and planned, however it ended."""
        serial = self._store.find_job(job_id).serial
        while True:
            if self._store.find_job(job_id).serial != serial:
                raise JobNotFoundError(f"job {job_id.name!r} was deleted meanwhile, another one has its name")
            stored = self._store.find_step(job_id, generation, step)
            if stored is not None and stored.result is not None:
                return stored
            if (job_id, generation, step) in self._store_errors:
                raise self._store_errors[job_id, generation, step]
            if self._is_closed and (job_id, generation, step) not in self._solving:
                raise ShuttingDownError("the planner is shutting down")
            await self._waiting_room.wait(job_id)

    def _load_reports(self, job_id: JobId, generation: int, step: int, after_rank: int) -> StoredReports:
        return self._store.load_reports(job_id, generation, step, after_rank=after_rank, most_bytes=MAX_REPORT_BYTES)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ShuttingDownError("the planner is shutting down and takes no more work")

    def _queue_position(self, key: StepKey) -> int:
        """Count the batches ahead of a step; 0 for one that is solved already."""
        solving = self._solving.get(key)
        return 0 if solving is None else self._queue.position(solving.ticket)

    def _drop_work(self, job_id: JobId) -> None:
        """Stop the solves of a job whose steps are forgotten, and wake its waiters."""
        for key in [key for key in self._solving if key[0] == job_id]:
            self._solving.pop(key).task.cancel()
        self._waiting_room.announce(job_id)

    def _drop_forgotten(self, job_id: JobId, generation: int) -> None:
        """Stop the solve of a step that the store no longer keeps, and wake who waits for it."""
        forgotten_through = self._store.find_job(job_id).forgotten_through
        for key in [key for key in self._solving if key[:2] == (job_id, generation) and key[2] <= forgotten_through]:
            self._solving.pop(key).task.cancel()
            self._waiting_room.announce(job_id)


def _read_job_id(name: str) -> JobId:
    """Check a job's name; the caller means a job of their own by it."""
    return JobId(caller(), messages.read_job_name(name))
