"""A planner that cannot start says why in one sentence, ends with an exit code and leaves nothing behind."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_planner.cli import build_app
from infinipipe_planner.config import default_store
from infinipipe_planner.job_store import JobStore
from infinipipe_planner.store_file import MEMORY, SCHEMA_VERSION
from support_service.process import COMMAND, ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def serve(*options: str, prelude: str = "") -> tuple[int, list[str]]:
    """Start a planner that is expected to end at once; return its exit code and what it says is wrong."""
    interpreter, flag, program = COMMAND
    command = [interpreter, flag, f"{prelude}\n{program}", "serve", "--listen", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def test_a_store_of_a_newer_planner_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite"
    JobStore(str(path)).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    code, (sentence,) = serve("--workers", "0", "--store", str(path))

    assert code == 1
    assert f"was written by a newer planner (schema 99, this one knows {SCHEMA_VERSION})" in sentence


def test_a_store_that_another_planner_uses_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite"
    store = JobStore(str(path))

    code, (sentence,) = serve("--workers", "0", "--store", str(path))

    store.close()
    assert (code, sentence) == (1, f"error: cannot open the store {path}: another planner uses it")


def test_without_ray_installed_the_start_says_how_to_do_without() -> None:
    code, (sentence,) = serve("--workers", "1", prelude="import sys; sys.modules['ray'] = None")

    assert (code, sentence) == (
        1,
        "error: the solvers need ray, which is not installed; --workers 0 solves without Ray",
    )


def test_a_ray_that_does_not_start_is_one_sentence() -> None:
    broken = (
        "import ray\ndef init(**_): raise MemoryError('cannot allocate 104857600 bytes\\nand more')\nray.init = init"
    )

    code, (sentence,) = serve("--workers", "1", prelude=broken)

    assert code == 1
    assert sentence == (
        "error: the solvers did not start: cannot allocate 104857600 bytes; --workers 0 solves without Ray"
    )


def test_no_ray_cluster_at_the_address_is_one_sentence() -> None:
    code, (sentence,) = serve("--workers", "1", "--ray-address", "127.0.0.1:1")

    assert (code, sentence) == (1, "error: no Ray cluster at 127.0.0.1:1: Connection refused")


def test_a_cluster_and_no_workers_contradict_each_other() -> None:
    code, (sentence,) = serve("--workers", "0", "--ray-address", "127.0.0.1:1")

    assert code == 2
    assert "--ray-address and --workers 0 contradict each other" in sentence


def test_the_store_goes_by_the_address_and_a_free_port_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")

    assert default_store("127.0.0.1:50051") == "/state/infinipipe/planner-127.0.0.1-50051.sqlite"
    assert default_store("[::1]:7") == "/state/infinipipe/planner-__1-7.sqlite"
    assert default_store("127.0.0.1:0") == MEMORY
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_store("127.0.0.1:1") == "/home/me/.local/state/infinipipe/planner-127.0.0.1-1.sqlite"


@pytest.mark.parametrize(
    ("options", "variables", "sentence"),
    [
        (("--listen", "0.0.0.0:0"), {}, "other machines reach 0.0.0.0:0: give --tls-cert and --tls-key, or --insecure"),
        (
            ("--listen", "0.0.0.0:0", "--insecure"),
            {"INFINIPIPE_TOKENS": "alice alice-0123456789abcdef"},
            "other machines reach 0.0.0.0:0: tokens are not taken there without TLS",
        ),
        (("--tls-cert", "c.pem"), {}, "TLS needs both --tls-cert and --tls-key"),
        (("--tls-client-ca", "c.pem"), {}, "TLS needs both --tls-cert and --tls-key"),
        (
            ("--tls-cert", "missing.pem", "--tls-key", "k.pem"),
            {},
            "--tls-cert missing.pem: cannot be read: No such file",
        ),
        (("--tokens", "missing"), {}, "--tokens missing: cannot be read: No such file"),
        ((), {"INFINIPIPE_TOKENS": "alice"}, "INFINIPIPE_TOKENS, line 1: expected a name"),
    ],
)
def test_what_is_not_safe_ends_the_start_as_a_mistake_of_the_command(
    options: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:
    result = CliRunner().invoke(build_app(), ["serve", "--listen", "127.0.0.1:0", *options], env=variables)

    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {sentence}")


# A network of its own, in which there are no other machines: every interface there is reaches nobody.
ALONE = """
import ctypes, os, sys
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
if ctypes.CDLL(None).unshare(CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET):
    sys.exit("this machine gives no network namespaces")
"""


def test_a_planner_without_tls_serves_other_machines_when_that_is_asked_for_and_warns() -> None:
    if subprocess.run([sys.executable, "-c", ALONE], check=False, timeout=30).returncode:
        pytest.skip("this machine gives no network namespaces, and nothing may listen beyond loopback without one")
    service = ServiceProcess("--listen", "0.0.0.0:0", "--workers", "0", "--insecure", prelude=ALONE)
    try:
        assert service.wait_line().startswith("planner listening on 0.0.0.0:")
    finally:
        log = service.close()

    assert "other machines reach 0.0.0.0:0, without encryption and without authentication" in log
