"""Files of certificates, keys and tokens: read and checked; a fault is one sentence that names option and file."""

import os
import ssl
from pathlib import Path

from infinipipe_contract.access import is_open_to_everybody
from infinipipe_planner.errors import PlannerError


class SecurityError(PlannerError):
    """A certificate, a key, a token or the way they are used is no good; the message names option and file."""


def read_file(path: Path, option: str) -> bytes:
    """Read a file that anybody may know.

    Raises:
        SecurityError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{option} {path}: cannot be read: {error.strerror}") from None


def read_secret(path: Path, option: str) -> bytes:
    """Read a file that only its owner, and perhaps a group, may know.

    Raises:
        SecurityError: If it cannot be read, or if everybody on the machine can.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise SecurityError(f"{option} {path}: cannot be read: {error.strerror}") from None
    if is_open_to_everybody(mode):
        raise SecurityError(f"{option} {path}: every user of this machine may read it or more: chmod 600 {path}")
    return content


def trust(context: ssl.SSLContext, authorities: bytes, path: Path, option: str) -> None:
    """Let a context trust the authorities of a file.

    Raises:
        SecurityError: If the file holds no certificate.
    """
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SecurityError(f"{option} {path}: holds no certificate in PEM form") from None


def show(context: ssl.SSLContext, cert: Path, cert_option: str, key: Path, key_option: str) -> None:
    """Let a context show a certificate, which also proves that its key belongs to it.

    Raises:
        SecurityError: If one of them is not in PEM form, the key has a password, or they do not belong together.
    """
    try:
        context.load_cert_chain(cert, key, password="")  # a password is refused, never asked for on a terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SecurityError(f"{key_option} {key}: is not the key of {cert_option} {cert}") from None
        raise SecurityError(
            f"{cert_option} {cert} and {key_option} {key}: not a certificate and its key in PEM form without a password"
        ) from None
    except OSError as error:
        raise SecurityError(f"{cert_option} {cert} and {key_option} {key}: {error.strerror}") from None
