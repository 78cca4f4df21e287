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
    parse_address,
)


def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes a free one.")
    ] = DEFAULT_ADDRESS,
    workers: Annotated[
        int, typer.Option(min=1, help="Solver processes.", show_default="one a core, at most 8")
    ] = default_num_workers(),
) -> None:
    """Run the planning service until Ctrl-C or SIGTERM."""
    try:
        parse_address(listen)
    except InvalidAddressError as error:
        fail(str(error), EXIT_USAGE)
    with planner_extra():
        from infinipipe_planner import server  # noqa: PLC0415  # brings Ray, which the other commands do without
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("infinipipe_planner").setLevel(logging.INFO)
    try:
        server.serve(ServerConfig(listen=listen, num_workers=workers), typer.echo)
    except InvalidAddressError as error:
        fail(str(error))
