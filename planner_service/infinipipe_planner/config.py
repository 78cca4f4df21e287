"""How the planning service is set up: address, solvers, limits."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infinipipe_planner.errors import PlannerError
from infinipipe_planner.store_file import MEMORY

DEFAULT_ADDRESS = "127.0.0.1:50051"

MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest message either way: 100,000 lengths take 0.3 MiB, their plan about 2 MiB."""

MAX_REPORT_BYTES = 4 * 2**20
"""Reports of ranks in one message, about 300: the plan goes along, and the event loop writes them."""

MIN_CLIENT_PING_INTERVAL_S = 4.0
"""Shortest time between two keepalive pings of a client: clients may ask for 5 s, the network shifts pings a little.
gRPC's own default, 300 s, cuts off clients in a long wait."""

SHUTDOWN_GRACE_S = 10.0
"""Seconds that calls in flight get to finish after the first signal."""

MAX_DEFAULT_WORKERS = 8
"""Solvers started by default at most: a sweep has about pp_size + 4 candidates."""

MAX_BATCHES = 512
"""Batches of all jobs that may wait for the solvers."""

MAX_BATCHES_PER_JOB = 32
"""Batches of one job that may wait for the solvers; a job that trains has two at a time."""

MAX_BATCHES_PER_OWNER = 128
"""Batches of one owner of a token that may wait for the solvers."""

MAX_SOLVE_S = 300.0
"""Seconds that solvers may work on one batch: less than executors wait for a plan, so that they get the fallback."""

MAX_JOBS = 1_000
"""Jobs of one owner that are kept: a job stays until it is deleted."""

LogFormat = Literal["text", "json"]

MAX_WAITERS = 16_384
"""Callers that may wait for plans: every rank of every job does."""


class InvalidAddressError(PlannerError):
    """An address that cannot be read, or that this machine cannot listen on."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files of a service that speaks TLS, all in PEM form.

    Attributes:
        cert: The service's certificate, with those of the authorities between it and the one that clients know.
        key: Its private key.
        client_ca: Authorities of clients' certificates; None asks for none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Set-up of one service.

    Attributes:
        listen: HOST:PORT; port 0 takes a free one.
        num_workers: Solver processes of Ray; 0 solves in one process without Ray.
        store: SQLite file of jobs, plans and reports; by default nothing outlives the service.
        ray_address: Ray cluster to use; None starts an instance of its own.
        max_batches: Batches of all jobs that may wait.
        max_batches_per_job: Batches of one job that may wait.
        max_batches_per_owner: Batches of one owner that may wait, where there are tokens.
        max_solve_s: Seconds that solvers may work on one batch.
        min_ping_interval_s: Shortest keepalive interval that clients may use.
        grace_s: Seconds that calls in flight get to finish on shutdown.
        tls: Certificates; None speaks plaintext.
        tokens_file: File of names and tokens.
        tokens_text: The same as a text, where there is no file; with neither, everybody is let in.
        is_insecure: Let other machines in without TLS.
        has_reflection: Describe the service to callers that ask for it; None does so without TLS only.
        max_jobs: Jobs of one owner that are kept.
        max_waiters: Callers that may wait for plans at once; half of them of one owner, where there are tokens.
        metrics_listen: HOST:PORT where Prometheus reads metrics; None shows none.
    """

    listen: str = DEFAULT_ADDRESS
    num_workers: int = 1
    store: str = MEMORY
    ray_address: str | None = None
    max_batches: int = MAX_BATCHES
    max_batches_per_job: int = MAX_BATCHES_PER_JOB
    max_batches_per_owner: int = MAX_BATCHES_PER_OWNER
    max_solve_s: float = MAX_SOLVE_S
    min_ping_interval_s: float = MIN_CLIENT_PING_INTERVAL_S
    grace_s: float = SHUTDOWN_GRACE_S
    tls: TlsFiles | None = None
    tokens_file: Path | None = None
    tokens_text: str = field(default="", repr=False)
    is_insecure: bool = False
    has_reflection: bool | None = None
    max_jobs: int = MAX_JOBS
    max_waiters: int = MAX_WAITERS
    metrics_listen: str | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether callers must show a token."""
        return self.tokens_file is not None or bool(self.tokens_text)

    @property
    def is_reflected(self) -> bool:
        """Whether the service describes itself to callers."""
        return self.tls is None if self.has_reflection is None else self.has_reflection


def default_num_workers() -> int:
    """Return a solver for every core that this process may use, up to ``MAX_DEFAULT_WORKERS``."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_DEFAULT_WORKERS)


def parse_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        InvalidAddressError: If it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    bare_host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare_host or (":" in bare_host and bare_host == host):
        raise InvalidAddressError(f"address {address!r} is not HOST:PORT, for example {DEFAULT_ADDRESS}")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise InvalidAddressError(f"address {address!r}: the port must be a number from 0 to 65535")
    return bare_host, int(port)


def format_address(host: str, port: int) -> str:
    """Write HOST:PORT, an IPv6 host in brackets: the inverse of ``parse_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def default_store(listen: str) -> str:
    """Return the store of a service that listens on an address: a file of the user named after it.

    Clients find a service again by its address, so what it keeps goes by the address, too, and two services on one
    machine never share a file. A port that is free by chance is not found again: such a service keeps nothing.

    Raises:
        InvalidAddressError: If the address is not HOST:PORT.
    """
    host, port = parse_address(listen)
    if port == 0:
        return MEMORY
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return str(state / "infinipipe" / f"planner-{host.replace(':', '_')}-{port}.sqlite")
