"""How a client shows a planner who it is, and what may be sent where: rules that both sides hold to.

Pure: each side reads its files by itself. A token is a secret of printable characters that travels in the metadata of
every call; over a connection that others can read it is not sent at all.
"""

import ipaddress
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import socket

from infinipipe_contract.errors import ContractError
from infinipipe_contract.handshake import Settings, explain_handshake

TOKEN_KEY = "authorization"
TOKEN_PREFIX = "Bearer "

MIN_TOKEN_CHARACTERS = 20
"""Shorter ones can be guessed; 32 random bytes in hexadecimal have 64."""

MAX_TOKEN_CHARACTERS = 1_024


class AccessError(ContractError):
    """Files, names or tokens of a connection that do not go together; the message names the setting, never a secret."""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """What a client needs to reach a planner.

    Attributes:
        settings: Names under which the user set the rest, for messages.
        authorities: Certificates that the planner's one must be signed by, as PEM; None means a connection without TLS.
        cert: The client's own certificate as PEM; None when it has none.
        key: Its private key as PEM.
        server_name: Name that the planner's certificate must hold; empty means the host of the address.
        token: The client's token; empty when it has none.
        context: The same authorities, certificate and key for the ssl module, which can say why a handshake fails.
    """

    settings: Settings
    authorities: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str = ""
    token: str = field(default="", repr=False)
    context: ssl.SSLContext | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return ((TOKEN_KEY, TOKEN_PREFIX + self.token),) if self.token else ()

    def explain_handshake(self, address: str, connect: Callable[[], socket]) -> str:
        """Find out why the planner cannot be talked to; empty when TLS is not the reason.

        Args:
            address: HOST:PORT of the planner.
            connect: Opens a connection to it, with a timeout.
        """
        name = self.server_name or host_of(address)
        return explain_handshake(
            connect, self.context, address, name, self.settings, shows_certificate=self.cert is not None
        )

    def explain_refusal(self, address: str) -> str:
        """Say what UNAUTHENTICATED means to this client; the planner itself tells nobody more than that."""
        if self.token:
            return f"the planner at {address} does not know this token ({self.settings.token})"
        return f"the planner at {address} wants a token: set {self.settings.token}"


def check_access(address: str, access: ClientAccess) -> None:
    """Refuse settings that contradict each other, and a token that everybody on the way could read.

    Raises:
        AccessError: With the setting to change.
    """
    settings = access.settings
    if (access.cert is None) != (access.key is None):
        raise AccessError(f"{settings.cert} and {settings.key} belong together, only one of them is set")
    if access.authorities is None:
        for name, value in ((settings.cert, access.cert), (settings.server_name, access.server_name)):
            if value:
                raise AccessError(f"{name} needs {settings.ca}: without it there is no TLS")
        if access.token and not is_loopback(host_of(address)):
            raise AccessError(
                f"a token is not sent to {address} without TLS, where others could read it: set {settings.ca}"
            )
    if access.token:
        check_token(access.token, settings.token)


def check_token(token: str, where: str) -> None:
    """Refuse what cannot be a token, without showing it.

    Raises:
        AccessError: If it is too short, too long or holds other characters.
    """
    if not all("!" <= character <= "~" for character in token):
        raise AccessError(f"{where}: a token is one word of printable ASCII characters")
    if not MIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise AccessError(
            f"{where}: the token has {len(token)} characters, it must have {MIN_TOKEN_CHARACTERS} to "
            f"{MAX_TOKEN_CHARACTERS}; `openssl rand -hex 32` makes a good one"
        )


def is_open_to_everybody(mode: int) -> bool:
    """Tell from a file's mode whether users that are neither its owner nor of its group may do anything with it."""
    return bool(mode & 0o007)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, by its name alone: no resolver is asked."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """Take the host out of HOST:PORT, an IPv6 one without its brackets."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
