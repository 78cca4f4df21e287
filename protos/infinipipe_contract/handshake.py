"""Why a client and a planner do not come to terms about TLS, in the words of the client's settings.

gRPC says of every failed handshake that it failed. The ssl module of Python knows why: it shakes hands once more, over
a connection that the caller opens, and what it finds becomes one sentence. Entry point: ``explain_handshake``.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import socket
from typing import Any

# Numbers of OpenSSL (X509_V_ERR_...), which Python passes on without names.
NOT_YET_VALID = 9
EXPIRED = 10
WRONG_NAMES = (62, 64)  # host name, IP address


@dataclass(frozen=True, slots=True)
class Settings:
    """How a user names the settings of a connection, for example ``[planner] tls_ca`` or ``--tls-ca``."""

    ca: str
    cert: str
    key: str
    server_name: str
    token: str


def explain_handshake(
    connect: Callable[[], socket],
    context: ssl.SSLContext | None,
    address: str,
    name: str,
    settings: Settings,
    *,
    shows_certificate: bool,
) -> str:
    """Shake hands with a planner to find out what is wrong.

    Args:
        connect: Opens a connection to the planner, with a timeout.
        context: What the client trusts and shows; None when it does not speak TLS.
        address: HOST:PORT of the planner, for the sentence.
        name: Name that the planner's certificate must hold.
        settings: The client's settings by name.
        shows_certificate: Whether the client has a certificate of its own.

    Returns:
        One sentence, or nothing when nobody is there or TLS is not what is wrong.
    """
    try:
        if context is None:
            return _explain_plain(connect, address, settings)
        return _explain_secured(connect, context, address, name, settings, shows_certificate)
    except OSError:  # nobody there, gone, or cut off in the middle: a planner that is away
        return ""


def _explain_plain(connect: Callable[[], socket], address: str, settings: Settings) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: all there is to know is whether TLS answers
    context.set_alpn_protocols(["h2"])
    with connect() as connection, context.wrap_socket(connection):
        return f"the planner at {address} speaks TLS: name the authority of its certificate with {settings.ca}"


def _explain_secured(
    connect: Callable[[], socket],
    context: ssl.SSLContext,
    address: str,
    name: str,
    settings: Settings,
    shows_certificate: bool,
) -> str:
    context.set_alpn_protocols(["h2"])
    context.check_hostname = True
    try:
        with connect() as connection, context.wrap_socket(connection, server_hostname=name) as secured:
            if _is_welcome(secured):
                return ""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_NAMES:
            names = " and ".join(_certified_names(connect, context)) or "no host at all"
            return f"the certificate of the planner at {address} is for {names}, not {name} ({settings.server_name})"
        return _explain_certificate(error, address, settings)
    except ssl.SSLError as error:
        if error.reason != "WRONG_VERSION_NUMBER":
            raise
        return (
            f"the planner at {address} does not speak TLS: start it with --tls-cert and --tls-key, "
            f"or leave {settings.ca} out"
        )
    if not shows_certificate:
        return f"the planner at {address} wants a certificate of its clients: {settings.cert} and {settings.key}"
    return (
        f"the planner at {address} does not accept this client's certificate: it has expired, or another authority "
        f"signed it ({settings.cert})"
    )


def _is_welcome(secured: ssl.SSLSocket) -> bool:
    """Tell whether a planner goes on after the handshake: it speaks first; one that refuses a client closes."""
    try:
        return bool(secured.recv(1))
    except (ConnectionResetError, ssl.SSLError):
        return False


def _explain_certificate(error: ssl.SSLCertVerificationError, address: str, settings: Settings) -> str:
    if error.verify_code == EXPIRED:
        return (
            f"the certificate of the planner at {address} has expired, or the clock of this machine is wrong: "
            "renew what the planner has in --tls-cert"
        )
    if error.verify_code == NOT_YET_VALID:
        return f"the certificate of the planner at {address} is not valid yet, or the clock of this machine is wrong"
    return (
        f"the certificate of the planner at {address} is not signed by an authority of {settings.ca} "
        f"({error.verify_message})"
    )


def _certified_names(connect: Callable[[], socket], context: ssl.SSLContext) -> list[str]:
    """Return the hosts that a planner's certificate is for."""
    context.check_hostname = False
    with connect() as connection, context.wrap_socket(connection) as secured:
        entries: Sequence[Any] = (secured.getpeercert() or {}).get("subjectAltName", ())
    return [str(name) for kind, name in entries if kind in ("DNS", "IP Address")]
