"""A soak that is ended from outside takes the planner and the jobs that it started with it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support_e2e.runs import processes_with

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_soak_that_gets_sigterm_ends_its_planner_and_removes_its_folder(tmp_path: Path) -> None:
    soak = subprocess.Popen(
        [sys.executable, str(SOAK), "--steps", "100000", "--jobs", "2", "--kill-every-s", "1000"],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + 60
        while not [*tmp_path.glob("*/job-1.jsonl")]:  # the planner answers, the jobs have been started
            assert time.monotonic() < deadline_s, "the soak did not start"
            assert soak.poll() is None, "the soak ended by itself"
            time.sleep(0.1)
        assert processes_with(f"{tmp_path}/")

        soak.send_signal(signal.SIGTERM)

        assert soak.wait(90) == 128 + signal.SIGTERM
    finally:
        if soak.poll() is None:
            soak.kill()
            soak.wait()
    assert processes_with(f"{tmp_path}/") == []
    assert list(tmp_path.iterdir()) == []
