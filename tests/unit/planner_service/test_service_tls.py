"""TLS between the service and its two clients: it holds, and what is wrong is told by whoever can put it right.

The executor and the commands get the same cases; they name their own settings.
"""

import asyncio
import dataclasses
import datetime
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import typer
from typer.testing import CliRunner

from infinipipe_executor.config.planner import PlannerConfig
from infinipipe_executor.errors import ConfigError, PlannerUnavailableError, TokenRefusedError
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planner_access import load_access
from infinipipe_planner.cli import build_app
from infinipipe_planner.config import ServerConfig
from infinipipe_planner.secret_files import SecurityError
from infinipipe_planner.server import start_server
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, FakeSolver, background_service
from support_service.security import ALICE, TOKENS, Files, tls_config, write_secret

Client = Callable[[str, Mapping[str, Path | str]], None]
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"), trustme.CA())


@pytest.fixture(scope="module")
def other_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Certificates of an authority that nobody here knows."""
    return Files(tmp_path_factory.mktemp("other"), trustme.CA())


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


class RefusedError(Exception):
    """What a client told its user."""


def local_name(service: BackgroundService) -> str:
    """The address of a service by a name that certificates hold."""
    return service.address.replace("127.0.0.1", "localhost")


def executor(address: str, settings: Mapping[str, Path | str]) -> None:
    """Open a job as an executor does."""
    values = dict(settings)
    token = str(values.pop("token", ""))
    try:
        access = load_access(PlannerConfig(**values), address, {"INFINIPIPE_TOKEN": token})  # type: ignore[arg-type]
        with PlanClient(address, call_timeout_s=TIMEOUT_S, access=access) as client:
            client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
    except (ConfigError, PlannerUnavailableError, TokenRefusedError) as error:
        raise RefusedError(str(error)) from error


@pytest.fixture(params=["executor", "command"])
def client(request: pytest.FixtureRequest, app: typer.Typer) -> Client:
    def command(address: str, settings: Mapping[str, Path | str]) -> None:
        """List jobs as a person does."""
        values = dict(settings)
        environment = {"INFINIPIPE_TOKEN": str(values.pop("token", ""))}
        options = [part for name, value in values.items() for part in ("--" + name.replace("_", "-"), str(value))]
        result = CliRunner().invoke(app, ["jobs", "--planner", address, *options], env=environment)
        if result.exit_code:
            sentence = result.stderr.removeprefix("error: ").rstrip("\n")
            raise RefusedError(sentence.replace("--tls-", "[planner] tls_").replace("--token-", "[planner] token_"))

    return executor if request.param == "executor" else command


def told(client: Client, address: str, settings: Mapping[str, Path | str]) -> str:
    """Return what a client says that must not get through; it must say so at once."""
    started_s = time.monotonic()
    with pytest.raises(RefusedError) as caught:
        client(address, settings)
    assert time.monotonic() - started_s < TIMEOUT_S / 2
    # Both clients name the settings alike but for their case and the dashes, which the fixture takes away.
    return str(caught.value).replace("server-name", "server_name")


@pytest.fixture
def secured(files: Files) -> Iterator[BackgroundService]:
    with background_service(tls_config(files.issue("server", "localhost"))) as service:
        yield service


@pytest.fixture
def mutual(files: Files) -> Iterator[BackgroundService]:
    with background_service(tls_config(files.issue("server", "localhost"), files.ca)) as service:
        yield service


def test_a_client_that_knows_the_authority_gets_through(
    client: Client, files: Files, secured: BackgroundService
) -> None:
    client(local_name(secured), {"tls_ca": files.ca})


def test_a_client_with_a_certificate_of_the_authority_gets_through_mutual_tls(
    client: Client, files: Files, mutual: BackgroundService
) -> None:
    cert, key = files.issue("client", "client.example")

    client(local_name(mutual), {"tls_ca": files.ca, "tls_cert": cert, "tls_key": key})


def test_a_certificate_for_an_address_is_good_for_the_address(client: Client, files: Files) -> None:
    with background_service(tls_config(files.issue("address", "127.0.0.1"))) as service:
        client(service.address, {"tls_ca": files.ca})


def test_a_certificate_for_another_name_is_told_with_both_names_and_the_setting(client: Client, files: Files) -> None:
    with background_service(tls_config(files.issue("named", "a.example", "b.example"))) as service:
        address = local_name(service)

        sentence = told(client, address, {"tls_ca": files.ca})

        assert sentence == (
            f"the certificate of the planner at {address} is for a.example and b.example, not localhost "
            "([planner] tls_server_name)"
        )
        client(address, {"tls_ca": files.ca, "tls_server_name": "b.example"})


def test_a_certificate_without_a_name_of_a_host_is_told(client: Client, files: Files) -> None:
    with background_service(tls_config(files.issue("nameless", "somebody@example"))) as service:
        address = local_name(service)

        assert told(client, address, {"tls_ca": files.ca}) == (
            f"the certificate of the planner at {address} is for no host at all, not localhost "
            "([planner] tls_server_name)"
        )


def test_a_certificate_of_another_authority_is_told_with_the_setting(
    client: Client, other_files: Files, secured: BackgroundService
) -> None:
    address = local_name(secured)

    assert told(client, address, {"tls_ca": other_files.ca}) == (
        f"the certificate of the planner at {address} is not signed by an authority of [planner] tls_ca "
        "(unable to get local issuer certificate)"
    )


def test_an_expired_certificate_is_told(client: Client, files: Files) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    with background_service(tls_config(files.issue("expired", "localhost", not_after=yesterday))) as service:
        address = local_name(service)

        assert told(client, address, {"tls_ca": files.ca}).startswith(
            f"the certificate of the planner at {address} has expired, or the clock of this machine is wrong"
        )


def test_a_missing_client_certificate_is_told_with_the_settings(
    client: Client, files: Files, mutual: BackgroundService
) -> None:
    address = local_name(mutual)

    assert told(client, address, {"tls_ca": files.ca}) == (
        f"the planner at {address} wants a certificate of its clients: [planner] tls_cert and [planner] tls_key"
    )


def test_a_client_certificate_of_another_authority_is_told_with_the_setting(
    client: Client, files: Files, other_files: Files, mutual: BackgroundService
) -> None:
    cert, key = other_files.issue("client", "client.example")
    address = local_name(mutual)

    assert told(client, address, {"tls_ca": files.ca, "tls_cert": cert, "tls_key": key}) == (
        f"the planner at {address} does not accept this client's certificate: it has expired, or another authority "
        "signed it ([planner] tls_cert)"
    )


def test_a_planner_that_speaks_tls_is_told_to_a_client_that_does_not(
    client: Client, secured: BackgroundService
) -> None:
    assert told(client, secured.address, {}) == (
        f"the planner at {secured.address} speaks TLS: name the authority of its certificate with [planner] tls_ca"
    )


def test_a_planner_that_speaks_no_tls_is_told_to_a_client_that_does(client: Client, files: Files) -> None:
    with background_service() as service:
        sentence = told(client, service.address, {"tls_ca": files.ca})

    assert sentence.startswith(f"the planner at {service.address} does not speak TLS: start it with ")


def test_a_token_over_tls_lets_its_owner_in_and_a_wrong_or_missing_one_is_told_with_the_setting(
    client: Client, files: Files
) -> None:
    config = tls_config(files.issue("server", "localhost"), tokens=TOKENS)
    with background_service(config) as service:
        address, setting = local_name(service), "[planner] token_file or INFINIPIPE_TOKEN"

        assert told(client, address, {"tls_ca": files.ca}) == f"the planner at {address} wants a token: set {setting}"
        wrong: dict[str, Path | str] = {"tls_ca": files.ca, "token": "mallory-0123456789abcdef"}
        assert told(client, address, wrong) == f"the planner at {address} does not know this token ({setting})"
        client(address, {"tls_ca": files.ca, "token": ALICE})
        client(address, {"tls_ca": files.ca, "token_file": files.secret("token", f"{ALICE}\n"), "token": "other"})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token": ALICE}, "a token is not sent to planner.example:1 without TLS, where others could read it: set "),
        ({"tls_server_name": "x"}, "[planner] tls_server_name needs [planner] tls_ca: without it there is no TLS"),
        ({"tls_ca": "missing"}, "[planner] tls_ca {folder}/missing: cannot be read: No such file"),
        ({"tls_ca": "text"}, "[planner] tls_ca {folder}/text: holds no certificate in PEM form"),
        ({"tls_ca": "ca.pem", "tls_cert": "client.pem"}, "[planner] tls_cert and [planner] tls_key belong together"),
        ({"tls_cert": "client.pem", "tls_key": "client-key.pem"}, "[planner] tls_cert needs [planner] tls_ca"),
        ({"token_file": "open"}, "[planner] token_file {folder}/open: every user of this machine may read it or more"),
        ({"tls_ca": "ca.pem", "token_file": "text"}, "[planner] token_file or INFINIPIPE_TOKEN: a token is one word"),
        (
            {"tls_ca": "ca.pem", "token": "short"},
            "[planner] token_file or INFINIPIPE_TOKEN: the token has 5 characters",
        ),
        (
            {"tls_ca": "ca.pem", "tls_cert": "ca.pem", "tls_key": "client-key.pem"},
            "[planner] tls_key {folder}/client-key.pem: is not the key of [planner] tls_cert {folder}/ca.pem",
        ),
        (
            {"tls_ca": "ca.pem", "tls_cert": "text", "tls_key": "client-key.pem"},
            "[planner] tls_cert {folder}/text and [planner] tls_key {folder}/client-key.pem: not a certificate and its",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_told_before_anything_is_sent(
    client: Client, files: Files, settings: dict[str, str], sentence: str
) -> None:
    folder = files.folder
    assert files.ca.exists()
    files.issue("client", "client.example")
    files.secret("text", "some words")
    files.secret("open", ALICE).chmod(0o644)
    given = {name: value if name == "token" or "name" in name else folder / value for name, value in settings.items()}

    assert told(client, "planner.example:1", given).startswith(sentence.format(folder=folder))


def test_a_certificate_that_is_replaced_on_disk_holds_for_the_next_connection(
    client: Client, files: Files, tmp_path: Path
) -> None:
    def install(issued: tuple[Path, Path]) -> None:
        for source, target in zip(issued, (tmp_path / "cert.pem", tmp_path / "key.pem"), strict=True):
            shutil.copy2(source, target)
            os.utime(target)

    install(files.issue("old", "old.example"))
    with background_service(tls_config((tmp_path / "cert.pem", tmp_path / "key.pem"))) as service:
        address = local_name(service)
        client(address, {"tls_ca": files.ca, "tls_server_name": "old.example"})

        new_cert, new_key = files.issue("new", "localhost")
        shutil.copy2(new_cert, tmp_path / "cert.pem")  # the key is still the old one: the old pair stays in use
        client(address, {"tls_ca": files.ca, "tls_server_name": "old.example"})
        install((new_cert, new_key))

        client(address, {"tls_ca": files.ca})


def test_a_certificate_that_goes_bad_while_a_run_trains_is_waited_for(files: Files, other_files: Files) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    good = dataclasses.replace(tls_config(files.issue("good", "localhost")), listen=address)
    bad = dataclasses.replace(tls_config(other_files.issue("bad", "localhost")), listen=address)
    access = load_access(PlannerConfig(tls_ca=files.ca), address, {})
    with PlanClient(address, call_timeout_s=TIMEOUT_S, access=access) as run:
        with background_service(good):
            run.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        with background_service(bad), pytest.raises(PlannerUnavailableError, match="is not signed by an authority of"):
            run.submit_batch(0, (5, 7), timeout_s=1.0)
        with background_service(good):
            assert run.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS) == 1


def test_the_service_describes_itself_over_tls_only_when_asked(files: Files) -> None:
    cert = files.issue("server", "localhost")
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

    def status(config: ServerConfig) -> grpc.StatusCode:
        with background_service(config) as service:
            credentials = grpc.ssl_channel_credentials(files.ca.read_bytes())
            with grpc.secure_channel(local_name(service), credentials) as channel:
                open_call: Any = channel.stream_stream
                call = open_call(method)(iter((b"",)), timeout=10)
                try:
                    next(call)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

    assert status(tls_config(cert)) is grpc.StatusCode.UNIMPLEMENTED
    assert status(dataclasses.replace(tls_config(cert), has_reflection=True)) is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "sentence"),
    [
        ("missing", "server-key.pem", None, r"--tls-cert \S*/missing: cannot be read"),
        ("server.pem", "open", None, r"--tls-key \S*/open: every user of this machine may read it or more: chmod 600"),
        ("ca.pem", "server-key.pem", None, r"--tls-key \S*/server-key.pem: is not the key of --tls-cert \S*/ca.pem"),
        ("text", "server-key.pem", None, r"--tls-cert \S*/text and --tls-key \S*: not a certificate and its key"),
        ("server.pem", "server-key.pem", "text", r"--tls-client-ca \S*/text: holds no certificate in PEM form"),
    ],
)
def test_files_that_the_service_cannot_use_are_told_by_option_and_file(
    files: Files, cert: str, key: str, client_ca: str | None, sentence: str
) -> None:
    folder = files.folder
    assert files.ca.exists()
    files.issue("server", "localhost")
    files.secret("text", "some words")
    write_secret(folder / "open", (folder / "server-key.pem").read_bytes()).chmod(0o644)
    config = tls_config((folder / cert, folder / key), None if client_ca is None else folder / client_ca)

    with pytest.raises(SecurityError, match=sentence):
        asyncio.run(start_server(FakeSolver(), config))
