"""`infinipipe serve`: the planning service."""

import logging
from typing import Annotated

import typer

from infinipipe_planner.cli.output import EXIT_USAGE, fail, planner_extra
from infinipipe_planner.config import (
    DEFAULT_ADDRESS,
    InvalidAddressError,
    ServerConfig,
    default_num_workers,
    default_store,
    parse_address,
)
from infinipipe_planner.store_file import StoreError


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
) -> None:
    """Run the planning service until Ctrl-C or SIGTERM."""
    try:
        parse_address(listen)
        if ray_address is not None:
            parse_address(ray_address)
    except InvalidAddressError as error:
        fail(str(error), EXIT_USAGE)
    if ray_address is not None and workers == 0:
        fail("--ray-address and --workers 0 contradict each other: 0 workers solve without Ray", EXIT_USAGE)
    config = ServerConfig(
        listen=listen,
        num_workers=workers,
        store=default_store(listen) if store is None else store,
        ray_address=ray_address,
    )
    with planner_extra():
        from infinipipe_planner import server  # noqa: PLC0415  # brings Ray, which the other commands do without
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("infinipipe_planner").setLevel(logging.INFO)
    try:
        server.serve(config, typer.echo)
    except (InvalidAddressError, StoreError, server.SolversNotStartedError) as error:
        fail(str(error))
