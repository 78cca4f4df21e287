"""The address of a planner, as it comes from the command line."""

from infinipipe_executor.errors import ConfigError


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a planner, before anybody waits for an answer from there.

    Args:
        address: HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        ConfigError: If it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or any(map(str.isspace, host)) or (":" in host and not is_bracketed):
        raise ConfigError(f"planner address {address!r} is not HOST:PORT, for example 127.0.0.1:50051 (--planner)")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65_535):
        raise ConfigError(f"planner address {address!r}: the port must be a number from 1 to 65535 (--planner)")
