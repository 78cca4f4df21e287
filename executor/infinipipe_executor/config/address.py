"""The address of a planner, as it comes from the command line."""

from infinipipe_executor.errors import ConfigError


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a planner, before anybody waits for an answer from there.

    Args:
        address: HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        ConfigError: If it is not of that form.
    """
    host, _, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_host = host.strip("[]") and not any(map(str.isspace, host)) and (":" not in host or is_bracketed)
    if not is_host or not port.isdecimal():
        raise ConfigError(f"planner address {address!r} is not HOST:PORT, for example 127.0.0.1:50051 (--planner)")
    if not (port.isascii() and 1 <= int(port[:6]) <= 65_535):
        raise ConfigError(f"planner address {address!r}: the port must be a number from 1 to 65535 (--planner)")
