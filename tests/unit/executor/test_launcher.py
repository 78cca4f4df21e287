"""Ranks do not outlive a torchrun that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = """
import os, sys, time
from infinipipe_executor.launcher import end_with_launcher
end_with_launcher()
print(os.getpid(), flush=True)
time.sleep(60)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux sends the signal")
@pytest.mark.parametrize("is_torchrun", [True, False], ids=["torchrun", "a shell"])
def test_a_rank_ends_when_torchrun_is_killed_and_goes_on_when_a_shell_is(is_torchrun: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    if is_torchrun:
        environment["TORCHELASTIC_RUN_ID"] = "1"
    command = [sys.executable, "-c", LAUNCHER, RANK]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        launcher.kill()
        launcher.wait(10)
        deadline_s = time.monotonic() + (10 if is_torchrun else 0.5)
        while is_alive(rank) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        survived = is_alive(rank)
        if survived:
            os.kill(rank, signal.SIGKILL)
    assert survived is not is_torchrun
