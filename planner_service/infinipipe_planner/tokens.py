"""Who may use the service: a list of names with their tokens, one `name token` a line.

A name may have several tokens, so that a new one can be handed out before the old one goes. Tokens themselves are not
kept: only their digests are, and every one of them is compared, so that the time of an answer tells nothing.
"""

import hashlib
import hmac
import re
from collections.abc import Callable

from infinipipe_contract.access import AccessError, check_token
from infinipipe_planner.config import ServerConfig
from infinipipe_planner.reloading import Reloaded
from infinipipe_planner.secret_files import SecurityError, read_secret

TOKENS_OPTION = "--tokens"
TOKENS_VARIABLE = "INFINIPIPE_TOKENS"
PRINCIPAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Tokens:
    """Digests of tokens, and whose they are.

    Args:
        entries: Pairs of name and token.
    """

    def __init__(self, entries: list[tuple[str, str]]) -> None:
        self._entries = tuple((name, _digest(token)) for name, token in entries)

    def find_principal(self, token: str) -> str | None:
        """Return the name that a token belongs to; None when it is not known."""
        digest = _digest(token)
        found = None
        for name, known in self._entries:
            if hmac.compare_digest(known, digest):
                found = name
        return found


def load_tokens(config: ServerConfig) -> Callable[[], Tokens] | None:
    """Return what gives the newest list of tokens; None when everybody may use the service.

    Raises:
        SecurityError: If the list cannot be used.
    """
    path = config.tokens_file
    if path is not None:
        file = Reloaded(
            f"tokens {path}", [path], lambda: parse_tokens(read_secret(path, TOKENS_OPTION), f"{TOKENS_OPTION} {path}")
        )
        return file.newest
    if config.tokens_text:
        tokens = parse_tokens(config.tokens_text.encode(), TOKENS_VARIABLE)
        return lambda: tokens
    return None


def parse_tokens(content: bytes, where: str) -> Tokens:
    """Read a list of tokens: `name token` a line; empty lines and lines that begin with # are left out.

    Raises:
        SecurityError: With the line that is no good; no message holds a token.
    """
    entries: list[tuple[str, str]] = []
    owners: dict[str, str] = {}
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise SecurityError(f"{where}: is not a text in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not PRINCIPAL_NAME.fullmatch(words[0]):
            raise SecurityError(
                f'{where}, line {number}: expected a name (letters, digits, ".", "_" and "-", at most 64), a space and '
                "a token"
            )
        name, token = words
        try:
            check_token(token, f"{where}, line {number}")
        except AccessError as error:
            raise SecurityError(str(error)) from None
        if owners.setdefault(token, name) != name:
            raise SecurityError(f"{where}, line {number}: {name} has the same token as {owners[token]}")
        entries.append((name, token))
    if not entries:
        raise SecurityError(f"{where}: holds no token, nobody could use the planner")
    return Tokens(entries)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
