"""How commands that ask a planner reach it: the options for TLS and the token, the same for all of them.

Entry points: ``asks_planner`` gives a command the options, ``current_access`` is what the running command was given.
"""

import contextvars
import functools
import inspect
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from infinipipe_contract.access import AccessError, ClientAccess, check_access
from infinipipe_contract.handshake import Settings
from infinipipe_planner.cli.output import EXIT_USAGE, fail
from infinipipe_planner.config import parse_address
from infinipipe_planner.secret_files import SecurityError, read_file, read_secret, show, trust

TOKEN_VARIABLE = "INFINIPIPE_TOKEN"
SETTINGS = Settings(
    ca="--tls-ca",
    cert="--tls-cert",
    key="--tls-key",
    server_name="--tls-server-name",
    token=f"--token-file or {TOKEN_VARIABLE}",
)
PROBE_TIMEOUT_S = 2.0
PANEL = "Connection to the planner"


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """What was given on the command line or in the variables INFINIPIPE_TLS_CA, INFINIPIPE_TOKEN_FILE and so on."""

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str | None = None
    token_file: Path | None = None


def _option(kind: Any, metavar: str, variable: str, text: str) -> Any:  # noqa: ANN401  # a type, made at run time
    return Annotated[
        kind | None,
        typer.Option(metavar=metavar, envvar=variable, help=text, rich_help_panel=PANEL, show_default=False),
    ]


# By the names of the fields of AccessOptions.
OPTIONS = {
    "tls_ca": _option(Path, "FILE", "INFINIPIPE_TLS_CA", "Authority (PEM) of the planner's certificate: speak TLS."),
    "tls_cert": _option(Path, "FILE", "INFINIPIPE_TLS_CERT", "Own certificate (PEM), for mutual TLS."),
    "tls_key": _option(Path, "FILE", "INFINIPIPE_TLS_KEY", "Its private key (PEM)."),
    "tls_server_name": _option(
        str,
        "NAME",
        "INFINIPIPE_TLS_SERVER_NAME",
        "Name in the planner's certificate; the host of the address if unset.",
    ),
    "token_file": _option(
        Path, "FILE", "INFINIPIPE_TOKEN_FILE", f"File of the token; the variable {TOKEN_VARIABLE} may hold the token."
    ),
}

NO_OPTIONS = AccessOptions()

_options: contextvars.ContextVar[AccessOptions] = contextvars.ContextVar("options", default=NO_OPTIONS)


def asks_planner(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``OPTIONS``; it need not know them."""

    @functools.wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401  # the command's own
        given = AccessOptions(**{name: values.pop(name) for name in OPTIONS})
        before = _options.set(given)
        try:
            command(**values)
        finally:
            _options.reset(before)

    own = inspect.signature(command)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **OPTIONS}
    return run


def current_access(address: str) -> ClientAccess:
    """Return how the running command reaches the planner at an address; leave when its options do not go together."""
    try:
        access = load_access(_options.get(), os.environ.get(TOKEN_VARIABLE, ""))
        check_access(address, access)
    except (SecurityError, AccessError) as error:
        fail(str(error), EXIT_USAGE)
    return access


def load_access(options: AccessOptions, token: str) -> ClientAccess:
    """Read the files of the options.

    Args:
        options: Names the files.
        token: The token, where no file holds it.

    Raises:
        SecurityError: If a file cannot be used.
    """
    authorities = context = cert = key = None
    if options.tls_ca is not None:
        authorities = read_file(options.tls_ca, SETTINGS.ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, authorities, options.tls_ca, SETTINGS.ca)
    if options.tls_cert is not None:
        cert = read_file(options.tls_cert, SETTINGS.cert)
    if options.tls_key is not None:
        key = read_secret(options.tls_key, SETTINGS.key)
    if context is not None and options.tls_cert is not None and options.tls_key is not None:
        show(context, options.tls_cert, SETTINGS.cert, options.tls_key, SETTINGS.key)
    if options.token_file is not None:
        token = read_secret(options.token_file, "--token-file").decode("utf-8", "replace")
    return ClientAccess(SETTINGS, authorities, cert, key, options.tls_server_name or "", token.strip(), context)


def open_channel(address: str, access: ClientAccess, options: tuple[tuple[str, Any], ...]) -> grpc.Channel:
    """Open a channel with or without TLS."""
    if access.authorities is None:
        return grpc.insecure_channel(address, options=options)
    if access.server_name:
        options = (*options, ("grpc.ssl_target_name_override", access.server_name))
    credentials = grpc.ssl_channel_credentials(access.authorities, access.key, access.cert)
    return grpc.secure_channel(address, credentials, options=options)


def explain_handshake(address: str, access: ClientAccess) -> str:
    """Say why there is no TLS with the planner; empty when that is not what is wrong."""
    return access.explain_handshake(
        address, lambda: socket.create_connection(parse_address(address), timeout=PROBE_TIMEOUT_S)
    )
