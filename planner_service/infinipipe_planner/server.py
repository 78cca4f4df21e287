"""The planning service as a process: build it, run it until a signal, leave nothing behind."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from infinipipe.planner.v1 import planner_service_pb2, planner_service_pb2_grpc
from infinipipe_contract.errors import first_line
from infinipipe_contract.text import count_of
from infinipipe_planner.authentication import AuthenticationInterceptor
from infinipipe_planner.config import (
    MAX_MESSAGE_BYTES,
    InvalidAddressError,
    ServerConfig,
    format_address,
    parse_address,
)
from infinipipe_planner.credentials import check_exposure, load_credentials
from infinipipe_planner.errors import PlannerError
from infinipipe_planner.fair_queue import FairQueue
from infinipipe_planner.fallback_solver import FallbackSolver
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.local_solver import LocalSolver
from infinipipe_planner.metrics import PlannerMetrics, serve_metrics
from infinipipe_planner.ray_connection import NoRayClusterError
from infinipipe_planner.rpc_metering import MeteringInterceptor
from infinipipe_planner.servicer import PlannerServicer, Solver
from infinipipe_planner.solver_pool import SolverPool
from infinipipe_planner.status import StatusInterceptor
from infinipipe_planner.store_file import MEMORY
from infinipipe_planner.tokens import load_tokens

logger = logging.getLogger(__name__)

SERVICE_NAME = planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"].full_name

# A client that lost its machine sends nothing, not even an end; the server's own pings find that out.
SERVER_PING_INTERVAL_S = 60.0
SERVER_PING_TIMEOUT_S = 20.0
# Calls whose solve did not end in the grace are answered before the connection goes.
LAST_ANSWERS_S = 1.0


class SolversNotStartedError(PlannerError):
    """The solver processes did not start; the message names the reason and a way out."""


@dataclass(frozen=True, slots=True)
class PlannerServer:
    """A running service.

    Attributes:
        address: HOST:PORT it listens on; the port is the real one.
    """

    address: str
    _server: grpc.aio.Server
    _servicer: PlannerServicer
    _health: Any
    _store: JobStore

    async def set_serving(self, is_serving: bool) -> None:
        """Let health tell whether there is a solver; without one, plans are fallbacks."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (SERVICE_NAME, health.OVERALL_HEALTH):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those in flight finish for a while, answer the rest, close.

        Args:
            grace_s: Seconds for calls in flight.
        """
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self._server.stop(grace_s + LAST_ANSWERS_S))
        await self._servicer.drain(grace_s)
        await stopping
        self._store.close()


async def start_server(solver: Solver, config: ServerConfig, metrics: PlannerMetrics | None = None) -> PlannerServer:
    """Start the service on the running event loop.

    Args:
        solver: Plans batches.
        config: Address and limits.
        metrics: Are told what happens; None keeps them to the service.

    Returns:
        The service, which answers already.

    Raises:
        InvalidAddressError: If the address cannot be listened on.
        SecurityError: If certificates or tokens cannot be used.
        StoreError: If the store cannot be opened.
    """
    host, _ = parse_address(config.listen)
    credentials = None if config.tls is None else load_credentials(config.tls)
    metrics = metrics or PlannerMetrics()
    server = grpc.aio.server(interceptors=_interceptors(config, metrics), options=_options(config))
    store = JobStore(config.store, config.max_jobs)
    # One batch more than solvers, so that the next is there before a solver runs dry.
    queue = FairQueue(
        config.num_workers + 1, config.max_batches, config.max_batches_per_job, config.max_batches_per_owner
    )
    servicer = PlannerServicer(solver, store, queue, metrics, config)
    metrics.watch(
        queued_batches=lambda: queue.waiting_count,
        running_batches=lambda: queue.running_count,
        waiting_callers=lambda: servicer.waiter_count,
        store=config.store,
    )
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # not in the stubs
    planner_service_pb2_grpc.add_PlannerServiceServicer_to_server(  # type: ignore[no-untyped-call]  # generated
        servicer, server
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if config.is_reflected:
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    await health_servicer.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
    try:
        if credentials is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, credentials)
    except RuntimeError as error:
        store.close()
        raise InvalidAddressError(f"cannot listen on {config.listen}: {error}") from None
    resumed_count = servicer.resume()
    if resumed_count:
        logger.info("%d steps that were submitted before the start are planned now", resumed_count)
    await server.start()
    return PlannerServer(format_address(host, port), server, servicer, health_servicer, store)


def serve(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Run the service until SIGTERM or SIGINT; a second signal ends the grace, a third one kills.

    Args:
        config: Address, solvers and limits.
        announce: Takes the one line that says that the service answers.

    Raises:
        InvalidAddressError: If the address cannot be listened on.
        SecurityError: If certificates or tokens cannot be used, or other machines would be let in without TLS.
        StoreError: If the store cannot be opened.
        SolversNotStartedError: If there are no solvers.
    """
    is_loopback = check_listenable(config.listen).is_loopback
    check_exposure(config, is_loopback=is_loopback)
    _check_access(config)
    if not is_loopback and config.tls is None:
        logger.warning("other machines reach %s, without encryption and without authentication", config.listen)
    elif not is_loopback and not config.has_tokens and config.tls is not None and config.tls.client_ca is None:
        logger.warning(
            "other machines reach %s, and everybody there is let in (--tokens, --tls-client-ca)", config.listen
        )
    if config.metrics_listen is not None and not check_listenable(config.metrics_listen).is_loopback:
        logger.warning("other machines can read the metrics at %s: job names and figures", config.metrics_listen)
    JobStore(config.store).close()  # what is wrong with it is told before the solvers start
    logger.info("jobs and plans are kept in %s", "memory only" if config.store == MEMORY else config.store)
    metrics = PlannerMetrics()
    with _signals_as_exit(), _shown(metrics, config.metrics_listen):
        started_s = time.monotonic()
        pool = _start_solvers(config)
        pool.on_restart(metrics.count_solver_restart)
        try:
            logger.info("%s started in %.1f s", _describe_solvers(config), time.monotonic() - started_s)
            asyncio.run(_serve(pool, config, metrics, announce))
        finally:
            pool.close()


def _check_access(config: ServerConfig) -> None:
    """Read certificates and tokens once, so that what is wrong with them is told before the solvers start."""
    load_tokens(config)
    if config.tls is not None:
        load_credentials(config.tls)


def check_listenable(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Find out whether an address can be listened on before anything else is started.

    Returns:
        The address of the network interface.

    Raises:
        InvalidAddressError: Saying why not.
    """
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
        return ipaddress.ip_address(target[0])
    except OSError as error:
        reason = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise InvalidAddressError(f"cannot listen on {address}: {reason}") from None


@contextlib.contextmanager
def _shown(metrics: PlannerMetrics, listen: str | None) -> Iterator[None]:
    """Show metrics to Prometheus if somebody asked for it."""
    if listen is None:
        yield
        return
    with serve_metrics(metrics, listen) as url:
        logger.info("metrics are at %s", url)
        yield


def _start_solvers(config: ServerConfig) -> SolverPool | LocalSolver:
    try:
        if config.num_workers == 0:
            return LocalSolver.start(max_solve_s=config.max_solve_s)
        return SolverPool.start(config.num_workers, ray_address=config.ray_address, max_solve_s=config.max_solve_s)
    except SystemExit:  # Ray takes SIGTERM for itself while it starts, with an exit code of its own
        raise SystemExit(128 + signal.SIGTERM) from None
    except NoRayClusterError as error:
        raise SolversNotStartedError(str(error)) from None
    except ModuleNotFoundError as error:
        raise SolversNotStartedError(
            f"the solvers need {error.name}, which is not installed; --workers 0 solves without Ray"
        ) from None
    except Exception as error:  # whatever Ray met, the operator gets one sentence
        logger.debug("the solvers did not start", exc_info=error)
        raise SolversNotStartedError(
            f"the solvers did not start: {first_line(error)}; --workers 0 solves without Ray"
        ) from None


def _describe_solvers(config: ServerConfig) -> str:
    if config.num_workers == 0:
        return "1 solver without Ray"
    return count_of(config.num_workers, "solver")


async def _serve(
    pool: SolverPool | LocalSolver, config: ServerConfig, metrics: PlannerMetrics, announce: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    first_signal, second_signal = asyncio.Event(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if first_signal.is_set():
            for other in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(other)
                signal.signal(other, signal.SIG_DFL)
            second_signal.set()
        else:
            logger.info("%s: stopping, calls in flight get %g s", number.name, config.grace_s)
            first_signal.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    server = await start_server(FallbackSolver(pool), config, metrics)
    if isinstance(pool, SolverPool):

        def tell_health(is_available: bool) -> None:
            with contextlib.suppress(RuntimeError):  # the service has ended meanwhile
                loop.call_soon_threadsafe(lambda: loop.create_task(server.set_serving(is_available)))

        pool.on_availability(tell_health)
    announce(f"planner listening on {server.address} ({_describe_solvers(config)})")
    await first_signal.wait()
    stopping = asyncio.create_task(server.stop(config.grace_s))
    hurry = asyncio.create_task(second_signal.wait())
    await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await server.stop(0.0)
    hurry.cancel()


@contextlib.contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit outside the event loop, so that solvers that are just starting are closed, too."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interceptors(config: ServerConfig, metrics: PlannerMetrics) -> list[Any]:
    tokens = load_tokens(config)
    authentication = [] if tokens is None else [AuthenticationInterceptor(tokens)]
    return [MeteringInterceptor(metrics), *authentication, StatusInterceptor()]


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Two services on one port would each get a part of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(config.min_ping_interval_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", int(SERVER_PING_INTERVAL_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(SERVER_PING_TIMEOUT_S * 1000)),
        ("grpc.http2.ping_timeout_ms", int(SERVER_PING_TIMEOUT_S * 1000)),
    ]
