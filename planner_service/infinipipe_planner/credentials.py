"""What the service shows its clients and asks of them: TLS and mutual TLS by files, and where it may listen without."""

import ssl

import grpc

from infinipipe_planner.config import ServerConfig, TlsFiles
from infinipipe_planner.reloading import Reloaded
from infinipipe_planner.secret_files import SecurityError, read_file, read_secret, show, trust

CERT_OPTION = "--tls-cert"
KEY_OPTION = "--tls-key"
CLIENT_CA_OPTION = "--tls-client-ca"


def load_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Read certificate and key; files that are replaced later hold for the next connection.

    Raises:
        SecurityError: If a file cannot be used.
    """
    paths = [files.cert, files.key, *([files.client_ca] if files.client_ca is not None else [])]
    configuration = Reloaded(f"certificate {files.cert}", paths, lambda: _read_configuration(files))
    return grpc.dynamic_ssl_server_credentials(
        configuration.newest(), configuration.newest, require_client_authentication=files.client_ca is not None
    )


def check_exposure(config: ServerConfig, *, is_loopback: bool) -> None:
    """Refuse to let other machines in without TLS, unless that is asked for.

    Args:
        config: Address, TLS and tokens.
        is_loopback: Whether only this machine reaches the address.

    Raises:
        SecurityError: With the option that would help.
    """
    if is_loopback or config.tls is not None:
        return
    if config.has_tokens:
        raise SecurityError(
            f"other machines reach {config.listen}: tokens are not taken there without TLS, "
            f"where others could read them ({CERT_OPTION} and {KEY_OPTION})"
        )
    if not config.is_insecure:
        raise SecurityError(
            f"other machines reach {config.listen}: give {CERT_OPTION} and {KEY_OPTION}, or --insecure to let "
            "everybody in without encryption and without authentication"
        )


def _read_configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    cert, key = read_file(files.cert, CERT_OPTION), read_secret(files.key, KEY_OPTION)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    show(context, files.cert, CERT_OPTION, files.key, KEY_OPTION)
    client_ca = None
    if files.client_ca is not None:
        client_ca = read_file(files.client_ca, CLIENT_CA_OPTION)
        trust(context, client_ca, files.client_ca, CLIENT_CA_OPTION)
    return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
