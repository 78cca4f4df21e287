"""The demo's own part: it shows what it started, and nothing it started outlives it. The run is a tiny one."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_e2e.runs import kill_all, write_run

pytestmark = pytest.mark.e2e

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "run.py"

# Workers die at once, the planner closes Ray first.
END_S = 30.0


@contextlib.contextmanager
def demo(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        kill_all(str(config))
        process.communicate()


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> set[int]:
    """List the processes below one."""
    below, parent_of = {pid}, parents()
    while more := {child for child, parent in parent_of.items() if parent in below} - below:
        below |= more
    return below - {pid}


def alive(pids: set[int]) -> list[str]:
    """Describe those processes that still run."""
    described = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                described.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_text()[:100]}")
    return described


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Read lines up to the first one with a word in it."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"{word!r} never came:\n{seen}")


def test_the_demo_shows_its_steps_one_plan_and_a_summary(tmp_path: Path) -> None:
    with demo(write_run(tmp_path)) as process:
        output, _ = process.communicate(timeout=100)

    assert process.returncode == 0, output
    assert "step 3 of 4" in output
    assert "$ infinipipe show tiny " in output
    assert "stage 1  F0" in output
    assert "steps with recompute" in output
    assert "longest wait for a plan" in output
    assert "what to try next" in output


def test_a_run_that_fails_fails_the_demo_and_the_cause_is_its_last_line(tmp_path: Path) -> None:
    with demo(write_run(tmp_path, changes={"data": {"pattern": "*.rst"}})) as process:
        output, _ = process.communicate(timeout=100)

    assert process.returncode != 0
    assert output.splitlines()[-1].startswith("error: the corpus is empty"), output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_demo_when_it_is_interrupted_or_killed(tmp_path: Path, number: signal.Signals) -> None:
    with demo(write_run(tmp_path, changes={"job": {"steps": 100_000}})) as process:
        read_until(process, "step      1 of 100000")
        started = descendants(process.pid)
        assert len(started) >= 6  # the planner with Ray's processes, torchrun, four workers

        os.kill(process.pid, number)
        if number is signal.SIGINT:
            time.sleep(0.2)  # the impatient second Ctrl-C comes while the demo is cleaning up
            os.kill(process.pid, number)
        process.communicate(timeout=END_S)

        deadline_s = time.monotonic() + END_S
        while (left := alive(started)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
    assert not left
    assert process.returncode == (130 if number is signal.SIGINT else -number)
