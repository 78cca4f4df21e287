"""How the executor reaches its planner: certificates and token of section ``[planner]``, read and checked once.

Entry points: ``load_access``, ``open_channel``, and ``explain_handshake`` for when there is no TLS with the planner.
"""

import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from infinipipe_contract.access import AccessError, ClientAccess, check_access, host_of, is_open_to_everybody
from infinipipe_contract.handshake import Settings
from infinipipe_executor.config.planner import PlannerConfig
from infinipipe_executor.errors import ConfigError

TOKEN_VARIABLE = "INFINIPIPE_TOKEN"
SETTINGS = Settings(
    ca="[planner] tls_ca",
    cert="[planner] tls_cert",
    key="[planner] tls_key",
    server_name="[planner] tls_server_name",
    token=f"[planner] token_file or {TOKEN_VARIABLE}",
)
NO_ACCESS = ClientAccess(SETTINGS)
"""Plaintext, and no token."""

PROBE_TIMEOUT_S = 2.0


def load_access(config: PlannerConfig, address: str, environment: Mapping[str, str]) -> ClientAccess:
    """Read certificates and token.

    Args:
        config: Names the files.
        address: HOST:PORT of the planner.
        environment: Holds the token where no file does.

    Raises:
        ConfigError: With the key, the file and what is wrong.
    """
    authorities = None if config.tls_ca is None else _read(config.tls_ca, SETTINGS.ca)
    token = environment.get(TOKEN_VARIABLE, "")
    if config.token_file is not None:
        token = _read_secret(config.token_file, "[planner] token_file").decode("utf-8", "replace")
    access = ClientAccess(
        settings=SETTINGS,
        authorities=authorities,
        cert=None if config.tls_cert is None else _read(config.tls_cert, SETTINGS.cert),
        key=None if config.tls_key is None else _read_secret(config.tls_key, SETTINGS.key),
        server_name=config.tls_server_name,
        token=token.strip(),
        context=None if authorities is None else _build_context(config, authorities),
    )
    try:
        check_access(address, access)
    except AccessError as error:
        raise ConfigError(str(error)) from None
    return access


def open_channel(address: str, access: ClientAccess, options: tuple[tuple[str, Any], ...]) -> grpc.Channel:
    """Open a channel with or without TLS."""
    if access.authorities is None:
        return grpc.insecure_channel(address, options=options)
    if access.server_name:
        options = (*options, ("grpc.ssl_target_name_override", access.server_name))
    credentials = grpc.ssl_channel_credentials(access.authorities, access.key, access.cert)
    return grpc.secure_channel(address, credentials, options=options)


def explain_handshake(address: str, access: ClientAccess, timeout_s: float) -> str:
    """Say why there is no TLS with the planner; empty when that is not what is wrong.

    Args:
        address: HOST:PORT of the planner.
        access: What was tried.
        timeout_s: Seconds that are left to find out.
    """
    target = (host_of(address), int(address.rpartition(":")[2]))
    timeout_s = min(PROBE_TIMEOUT_S, max(timeout_s, 0.1))
    return access.explain_handshake(address, lambda: socket.create_connection(target, timeout=timeout_s))


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} {path}: cannot be read: {error.strerror}") from error


def _read_secret(path: Path, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{key} {path}: cannot be read: {error.strerror}") from error
    if is_open_to_everybody(mode):
        raise ConfigError(f"{key} {path}: every user of this machine may read it or more: chmod 600 {path}")
    return content


def _build_context(config: PlannerConfig, authorities: bytes) -> ssl.SSLContext:
    """Give the ssl module what gRPC gets, which also proves that the files are good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{SETTINGS.ca} {config.tls_ca}: holds no certificate in PEM form") from None
    if config.tls_cert is not None and config.tls_key is not None:
        try:
            context.load_cert_chain(config.tls_cert, config.tls_key, password="")  # never asked for on a terminal
        except ssl.SSLError as error:
            cert, key = f"{SETTINGS.cert} {config.tls_cert}", f"{SETTINGS.key} {config.tls_key}"
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"{key}: is not the key of {cert}") from None
            raise ConfigError(
                f"{cert} and {key}: not a certificate and its key in PEM form without a password"
            ) from None
    return context
