"""The processes below this one, read from /proc."""

import os
import time
from pathlib import Path


def children() -> set[int]:
    """List the living descendants of this process."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(status.parent.name)] = int(fields[1])
    found, fresh = set[int](), {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def wait_for_busy_solver(other_than: int = 0, timeout_s: float = 30.0) -> int:
    """Wait until a solver process builds a candidate and return its id; Ray shows it in the process title."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for pid in children() - {other_than}:
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"CandidateSolver.solve" in title:
                return pid
        time.sleep(0.01)
    raise TimeoutError(f"no solver process was busy within {timeout_s:g} s")
