"""The audit of dependencies, against a vulnerability database of the test's own."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {
    "id": "GHSA-test",
    "aliases": ["CVE-2000-1"],
    "summary": "bad",
    "affected": [
        {
            "package": {"name": "leaky", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


class Database(BaseHTTPRequestHandler):
    """Knows one vulnerability, and breaks when it is asked about "broken"."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
        self.send_response(500 if asked == "broken" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"vulns": [KNOWN]} if asked == "leaky" else {}).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""


@pytest.fixture
def database() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Database)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/query"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def audit(url: str, folder: Path, packages: str, allowed: str = "") -> tuple[int, str]:
    requirements, allowed_file = folder / "constraints.txt", folder / "allowed.toml"
    requirements.write_text(packages)
    allowed_file.write_text(allowed)
    options = ["--requirements", str(requirements), "--allowed", str(allowed_file), "--osv-url", url]
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "audit.py"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_known_vulnerability_fails_with_its_name_unless_it_is_allowed_with_a_reason(
    database: str, tmp_path: Path
) -> None:
    packages = "# pinned\nsound==2.0\nleaky==1.0\n"

    assert audit(database, tmp_path, packages) == (
        1,
        "audit: leaky 1.0: CVE-2000-1, fixed in 1.1\naudit: 1 known vulnerabilities, 0 of them allowed\n",
    )
    reasoned = '[[allowed]]\nid = "CVE-2000-1"\nreason = "not reached"\n'
    assert audit(database, tmp_path, packages, reasoned) == (
        0,
        "audit: 1 known vulnerabilities, 1 of them allowed\n",
    )
    code, output = audit(database, tmp_path, packages, '[[allowed]]\nid = "CVE-2000-1"\n')
    assert code == 1
    assert "CVE-2000-1 is allowed without a reason" in output


def test_an_allowance_that_is_no_longer_needed_is_told(database: str, tmp_path: Path) -> None:
    code, output = audit(database, tmp_path, "sound==2.0\n", '[[allowed]]\nid = "CVE-2000-1"\nreason = "x"\n')

    assert code == 0
    assert "CVE-2000-1 is allowed and no longer found" in output


def test_without_a_database_that_answers_the_audit_is_skipped_aloud(database: str, tmp_path: Path) -> None:
    for url, packages in (("http://127.0.0.1:1/query", "sound==2.0\n"), (database, "broken==1.0\n")):
        code, output = audit(url, tmp_path, packages)
        assert code == 0
        assert output.startswith(f"audit skipped: no vulnerability database reachable at {url} (")


def test_the_versions_that_ci_installs_can_be_audited(database: str, tmp_path: Path) -> None:
    code, output = audit(database, tmp_path, (ROOT / "constraints.txt").read_text())

    assert (code, output) == (0, "audit: 0 known vulnerabilities, 0 of them allowed\n")
