"""`infinipipe serve`: the planning service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from infinipipe_planner.cli.output import EXIT_USAGE, fail, planner_extra
from infinipipe_planner.config import (
    DEFAULT_ADDRESS,
    MAX_JOBS,
    MAX_SOLVE_S,
    MAX_WAITERS,
    InvalidAddressError,
    LogFormat,
    ServerConfig,
    TlsFiles,
    default_num_workers,
    default_store,
    parse_address,
)
from infinipipe_planner.secret_files import SecurityError
from infinipipe_planner.store_file import StoreError
from infinipipe_planner.tokens import TOKENS_VARIABLE

OPERATION_PANEL = "Metrics and log"
SECURITY_PANEL = "Who may call"
LIMITS_PANEL = "Limits"


def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes a free one.")
    ] = DEFAULT_ADDRESS,
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Solver processes; 0 solves in one process without Ray.", show_default="one a core, at most 8"
        ),
    ] = default_num_workers(),
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='SQLite file that jobs, plans and reports are kept in; ":memory:" keeps nothing.',
            show_default="a file named after the address in $XDG_STATE_HOME/infinipipe; nothing with port 0",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ray cluster to use instead of an instance of its own."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificate (PEM): speak TLS.", rich_help_panel=SECURITY_PANEL),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).", rich_help_panel=SECURITY_PANEL)
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Authorities (PEM) that clients' certificates must be signed by: mutual TLS.",
            rich_help_panel=SECURITY_PANEL,
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Who may call: a name and a token a line. Everybody sees their own jobs only.",
            envvar="INFINIPIPE_TOKENS_FILE",
            show_default=f"the variable {TOKENS_VARIABLE}; without it, everybody may",
            rich_help_panel=SECURITY_PANEL,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let other machines in without TLS and without tokens.", rich_help_panel=SECURITY_PANEL
        ),
    ] = False,
    reflection: Annotated[
        bool | None,
        typer.Option(
            help="Describe the service to callers that ask.",
            show_default="on without TLS",
            rich_help_panel=SECURITY_PANEL,
        ),
    ] = None,
    max_jobs: Annotated[
        int, typer.Option(min=1, help="Jobs kept of one owner of a token.", rich_help_panel=LIMITS_PANEL)
    ] = MAX_JOBS,
    max_waiters: Annotated[
        int, typer.Option(min=1, help="Callers that wait for plans at once.", rich_help_panel=LIMITS_PANEL)
    ] = MAX_WAITERS,
    max_solve_s: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="Seconds that solvers may work on one batch; then it gets the fallback plan.",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = MAX_SOLVE_S,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address where Prometheus reads /metrics; port 0 takes a free one.",
            show_default="no metrics",
            rich_help_panel=OPERATION_PANEL,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Log for people, or one JSON object a line.", rich_help_panel=OPERATION_PANEL)
    ] = "text",
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Log to this file and its five predecessors, 10 MiB each.",
            show_default="standard error",
            rich_help_panel=OPERATION_PANEL,
        ),
    ] = None,
) -> None:
    """Run the planning service until Ctrl-C or SIGTERM."""
    try:
        parse_address(listen)
        if ray_address is not None:
            parse_address(ray_address)
        if metrics_listen is not None:
            parse_address(metrics_listen)
    except InvalidAddressError as error:
        fail(str(error), EXIT_USAGE)
    if ray_address is not None and workers == 0:
        fail("--ray-address and --workers 0 contradict each other: 0 workers solve without Ray", EXIT_USAGE)
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = TlsFiles(tls_cert, tls_key, tls_client_ca)
    elif tls_cert is not None or tls_key is not None or tls_client_ca is not None:
        fail("TLS needs both --tls-cert and --tls-key", EXIT_USAGE)
    config = ServerConfig(
        listen=listen,
        num_workers=workers,
        store=default_store(listen) if store is None else store,
        ray_address=ray_address,
        tls=tls,
        tokens_file=tokens,
        tokens_text=os.environ.pop(TOKENS_VARIABLE, ""),  # the solvers' processes need not know
        is_insecure=insecure,
        has_reflection=reflection,
        max_jobs=max_jobs,
        max_waiters=max_waiters,
        max_solve_s=max_solve_s,
        metrics_listen=metrics_listen,
    )
    with planner_extra():
        from infinipipe_planner import server  # noqa: PLC0415  # brings Ray, which the other commands do without
        from infinipipe_planner.logs import LogFileError, open_log  # noqa: PLC0415
    try:
        with open_log(log_format, log_file):
            server.serve(config, typer.echo)
    except SecurityError as error:
        fail(str(error), EXIT_USAGE)
    except (InvalidAddressError, LogFileError, StoreError, server.SolversNotStartedError) as error:
        fail(str(error))
