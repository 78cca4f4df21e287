"""Ask a vulnerability database (OSV) about the versions that CI installs.

A known vulnerability ends with code 1 and its name, unless `.ci/audit-allowed.toml` says why it does no harm here.
Where no database answers, the audit is skipped, aloud, with code 0: a build must not depend on the network.
"""

import argparse
import json
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
OSV_URL = "https://api.osv.dev/v1/query"
CONNECT_TIMEOUT_S = 5.0
AUDIT_TIMEOUT_S = 180.0


def main() -> int:
    """Audit; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--allowed", type=Path, default=ROOT / ".ci" / "audit-allowed.toml")
    parser.add_argument("--osv-url", default=OSV_URL)
    arguments = parser.parse_args()
    allowed = read_allowed(arguments.allowed)
    try:
        found = find_vulnerabilities(arguments.requirements, arguments.osv_url)
    except OSError as error:
        say(f"audit skipped: no vulnerability database reachable at {arguments.osv_url} ({error})")
        return 0
    for name in sorted(set(allowed) - {name for names, _ in found for name in names}):
        say(f"audit: {name} is allowed and no longer found, take it out of {arguments.allowed.name}")
    bad = [sentence for names, sentence in found if not names & set(allowed)]
    for sentence in bad:
        say(f"audit: {sentence}")
    say(f"audit: {len(found)} known vulnerabilities, {len(found) - len(bad)} of them allowed")
    return 1 if bad else 0


def read_allowed(path: Path) -> dict[str, str]:
    """Read the vulnerabilities that do no harm here, each with the reason why.

    Returns:
        Reasons by identifier.
    """
    reasons = {entry["id"]: entry.get("reason", "") for entry in tomllib.loads(path.read_text()).get("allowed", [])}
    for name, reason in reasons.items():
        if not reason.strip():
            sys.exit(f"audit: {path}: {name} is allowed without a reason")
    return reasons


def find_vulnerabilities(requirements: Path, osv_url: str) -> list[tuple[set[str], str]]:
    """Return the identifiers of every known vulnerability, and a sentence about it.

    Raises:
        OSError: If the database cannot be reached or does not answer.
    """
    url = urlsplit(osv_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    socket.create_connection((url.hostname or "", port), CONNECT_TIMEOUT_S).close()
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", osv_url, "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {AUDIT_TIMEOUT_S:g} s") from None
    if not done.stdout.strip():
        raise OSError(next(iter(reversed(done.stderr.strip().splitlines())), f"pip-audit ended with {done.returncode}"))
    return [
        (
            {found["id"], *found["aliases"]},
            f"{package['name']} {package['version']}: {found['id']}, fixed in "
            + (", ".join(found["fix_versions"]) or "no version yet"),
        )
        for package in json.loads(done.stdout)["dependencies"]
        for found in package.get("vulns", [])
    ]


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
