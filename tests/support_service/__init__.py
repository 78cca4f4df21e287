"""A planning service with a solver that tests hold in their hands."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import profile_to_proto
from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
    default_target_token_count,
    plan_digest,
)
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_contract.simulate import estimate_plan
from infinipipe_planner.config import MAX_MESSAGE_BYTES, ServerConfig
from infinipipe_planner.metrics import PlannerMetrics
from infinipipe_planner.server import start_server
from infinipipe_planner.solve_request import SolveRequest
from support_contract import with_replicas

CONTEXT_TOKENS = 4_096
CONFIG = ServerConfig(listen="127.0.0.1:0", grace_s=0.5)

PROFILE = Profile(
    name="two-stages",
    model=ModelShape(layers=4, hidden=64, kv_dim=32, ffn=128, vocab=512, dtype_bytes=4),
    cluster=Cluster(pp_size=2, sp_size=1, device_memory_bytes=2.0**33, usable_memory_ratio=1.0),
    forward=ComputeCost(alpha1=1e-12, alpha2=1e-6, beta1=1e-4),
    backward=ComputeCost(alpha1=2e-12, alpha2=2e-6, beta1=1e-4),
    all2all=LinkCost(bandwidth_bytes_per_s=1e10, latency_s=1e-6),
    p2p=LinkCost(bandwidth_bytes_per_s=1e10, latency_s=1e-6),
    param_gather_s=(0.0, 0.0),
    memory=MemoryCost(token_bytes=1024.0, logits_bytes=64.0, model_state_bytes=(1e6, 1e6)),
)


def plan_of_one_chunk(
    lengths: Sequence[int],
    *,
    job: str = "",
    generation: int = 0,
    step: int = 0,
    target_token_count: int | None = None,
    dp_size: int = 1,
) -> ExecutionPlan:
    """Build the simplest plan there is: all sequences in one chunk of the first replica, forward and backward."""
    chunk = Chunk(tuple(Slice(index, 0, length) for index, length in enumerate(lengths)))
    actions = (Action(ActionKind.FORWARD, 0), Action(ActionKind.BACKWARD, 0))
    pipelines = (Pipeline((chunk,), (actions, actions)),)
    plan = ExecutionPlan(
        job=job,
        generation=generation,
        step=step,
        policy="paper",
        pipelines=pipelines,
        target_token_count=default_target_token_count(lengths) if target_token_count is None else target_token_count,
        estimate=estimate_plan(pipelines, with_replicas(PROFILE, dp_size)),
        report=SolveReport(SolveOutcome.OPTIMAL, solve_s=0.25, slice_count=1),
    )
    return dataclasses.replace(plan, digest=plan_digest(plan))


class FakeSolver:
    """Plans one chunk; can be told to hold solves until a test lets them go, and to fail steps.

    Attributes:
        solved_steps: Steps whose solve began, in that order.
        cancelled_steps: Steps whose solve was called off.
        errors: What to raise for a step instead of planning it.
        step_offset: How far off the step is that plans claim to be for.
    """

    def __init__(self, *, is_held: bool = False) -> None:
        self.solved_steps: list[int] = []
        self.cancelled_steps: list[int] = []
        self.errors: dict[int, Exception] = {}
        self.step_offset = 0
        self._is_free = asyncio.Event()
        if not is_held:
            self._is_free.set()

    def let_go(self) -> None:
        self._is_free.set()

    def hold(self) -> None:
        self._is_free.clear()

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        assert request.profile == with_replicas(PROFILE, request.profile.cluster.dp_size)
        assert request.options.policy
        self.solved_steps.append(request.step)
        try:
            await self._is_free.wait()
        except asyncio.CancelledError:
            self.cancelled_steps.append(request.step)
            raise
        if request.step in self.errors:
            raise self.errors[request.step]
        return plan_of_one_chunk(
            request.lengths,
            job=request.job,
            generation=request.generation,
            step=request.step + self.step_offset,
            target_token_count=request.target_token_count,
            dp_size=request.profile.cluster.dp_size,
        )


def job_spec(**changes: Any) -> pb.JobSpec:
    """A job specification that makes sense, with changes."""
    fields: dict[str, Any] = {"profile": profile_to_proto(PROFILE), "context_tokens": CONTEXT_TOKENS}
    return pb.JobSpec(**(fields | changes))


def submission(job: str, step: int, lengths: Sequence[int] = (5, 7), generation: int = 1, **more: Any) -> Any:
    return pb.SubmitBatchRequest(job=job, generation=generation, step=step, lengths_tokens=lengths, **more)


def plan_request(job: str, step: int, generation: int = 1) -> pb.GetPlanRequest:
    return pb.GetPlanRequest(job=job, generation=generation, step=step)


def report_request(job: str, step: int, generation: int = 1, **figures: Any) -> pb.ReportStepRequest:
    report = pb.RankReport(**({"rank": 0, "step_s": 1.5} | figures))
    return pb.ReportStepRequest(job=job, generation=generation, step=step, report=report)


Scenario = Callable[[Any], Awaitable[None]]


def with_service(
    solver: FakeSolver,
    scenario: Scenario,
    config: ServerConfig = CONFIG,
    timeout_s: float = 30,
    metrics: PlannerMetrics | None = None,
) -> None:
    """Run a scenario, a coroutine function of a stub, against a service on a real socket of this process."""

    async def run() -> None:
        server = await start_server(solver, config, metrics)
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        try:
            async with grpc.aio.insecure_channel(server.address, options=options) as channel:
                stub = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
                async with asyncio.timeout(timeout_s):
                    await scenario(stub)
        finally:
            await server.stop(0.0)

    asyncio.run(run())


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Await a call that must fail; return its status and sentence."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered, it should have been refused")


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop run until something holds; the scenario's timeout bounds it."""
    while not holds():
        await asyncio.sleep(0.005)


class BackgroundService:
    """A service on an event loop in a thread, for clients that block."""

    def __init__(self, config: ServerConfig = CONFIG, *, is_held: bool = False) -> None:
        self._config = config
        self._is_held = is_held
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="service")
        self._thread.start()
        self._started.result(20)

    def call(self, function: Callable[[], None]) -> None:
        """Run a function on the service's event loop and wait for it."""

        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(20)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.solver = FakeSolver(is_held=self._is_held)
        try:
            server = await start_server(self.solver, self._config)
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self.address = server.address
        self._started.set_result(None)
        await self._stopped.wait()
        await server.stop(0.0)


@contextlib.contextmanager
def background_service(config: ServerConfig = CONFIG, *, is_held: bool = False) -> Iterator[BackgroundService]:
    """Run a service for clients that block."""
    service = BackgroundService(config, is_held=is_held)
    try:
        yield service
    finally:
        service.stop()


def serve_in_child(pipe: Connection) -> None:
    """Body of a process that serves: sends the address, stops when anything comes back."""
    with background_service() as service:
        pipe.send(service.address)
        pipe.recv()
