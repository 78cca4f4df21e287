"""The Slurm scripts, run for real: Slurm's own commands are small stand-ins, the planner and the ranks are not."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support_e2e.runs import kill_all, write_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "slurm"
LIMIT_S = 120.0

# What Slurm's commands do here: the step runs on this machine, signals reach its processes, the rest is written down.
STAND_INS = {
    "srun": 'echo "$@" > "$INFINIPIPE_RUN/srun"; shift; echo $$ > "$INFINIPIPE_RUN/step"; exec "$@"',
    "scontrol": '[[ $1 == show ]] && echo 127.0.0.1 || echo "$@" >> "$INFINIPIPE_RUN/scontrol"',
    "scancel": 'kill -TERM "$(< "$INFINIPIPE_RUN/step")"',
}
# Ranks that save when they are told to, and end as torchrun does then.
SAVING_TORCHRUN = 'trap "echo saved; exit 1" TERM; echo trains; for ((i = 0; i < 600; i++)); do sleep 0.1; done; exit 3'


class Slurm:
    """A folder for a run, and stand-ins on the path.

    Args:
        folder: An empty one.
        commands: Further commands to put on the path, by name.
    """

    def __init__(self, folder: Path, commands: dict[str, str]) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        for name, body in (STAND_INS | commands).items():
            (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (programs / name).chmod(0o755)
        own = Path(sys.executable).parent
        self._environment = os.environ | {
            "PATH": os.pathsep.join((str(programs), str(own), os.environ["PATH"])),
            "INFINIPIPE_RUN": str(self.run),
            "INFINIPIPE_LISTEN": "127.0.0.1:0",
            "INFINIPIPE_WORKERS": "0",
            "INFINIPIPE_RANKS_PER_NODE": "1",
            "INFINIPIPE_RENDEZVOUS_PORT": "0",
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_JOB_NODELIST": "localhost",
        }

    @contextlib.contextmanager
    def job(self, script: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Run a script as a batch job would be run; what is left of it at the end is killed."""
        with subprocess.Popen(
            ["bash", str(SCRIPTS / script), *arguments],
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                kill_all(str(self.run))

    def requests(self) -> str:
        """What scontrol was asked for."""
        path = self.run / "scontrol"
        return path.read_text().strip() if path.exists() else ""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def test_the_planner_job_tells_its_address_and_the_executor_job_trains_with_it(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {})
    write_run(slurm.run, pp_size=1, sp_size=1, changes={"job": {"steps": 2}, "cluster": {"device_memory_mib": 4.0}})
    with slurm.job("executors.sbatch") as executors, slurm.job("planner.sbatch") as planner:
        output, _ = executors.communicate(timeout=LIMIT_S)
        assert executors.returncode == 0, output
        assert "step 1 of 2" in output
        assert "waiting for" in output
        assert " --max-restarts 3 -m infinipipe_executor " in (slurm.run / "srun").read_text()

        address = (slurm.run / "planner-address").read_text().strip()
        assert address.startswith("127.0.0.1:")
        planner.send_signal(signal.SIGTERM)
        output, _ = planner.communicate(timeout=LIMIT_S)
        assert planner.returncode == 0, output
        assert f"planner listening on {address}" in output
        assert not (slurm.run / "planner-address").exists()
        assert "job tiny, generation 1, step 1: planned in" in (slurm.run / "planner.log").read_text()
        assert slurm.requests() == ""


def test_a_planner_whose_time_is_up_ends_in_order_and_goes_back_into_the_queue(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {})
    with slurm.job("planner.sbatch") as planner:
        wait_until((slurm.run / "planner-address").exists, "the planner tells no address")
        planner.send_signal(signal.SIGUSR1)
        output, _ = planner.communicate(timeout=LIMIT_S)
    assert planner.returncode == 0, output
    assert slurm.requests() == "requeue 17"
    assert not (slurm.run / "planner-address").exists()


def test_a_run_whose_time_is_up_saves_and_goes_back_into_the_queue(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {"torchrun": SAVING_TORCHRUN})
    (slurm.run / "planner-address").write_text("127.0.0.1:50051\n")
    with slurm.job("executors.sbatch") as executors:
        assert executors.stdout is not None
        assert executors.stdout.readline() == "trains\n"
        executors.send_signal(signal.SIGUSR1)
        output, _ = executors.communicate(timeout=LIMIT_S)
    assert executors.returncode == 1, output
    assert "saved" in output
    assert slurm.requests() == "requeue 17"


@pytest.mark.parametrize("code", [0, 2])
def test_a_run_that_ends_by_itself_is_not_started_again(tmp_path: Path, code: int) -> None:
    slurm = Slurm(tmp_path, {"torchrun": f"exit {code}"})
    (slurm.run / "planner-address").write_text("127.0.0.1:50051\n")
    with slurm.job("executors.sbatch") as executors:
        output, _ = executors.communicate(timeout=LIMIT_S)
    assert executors.returncode == code, output
    assert slurm.requests() == ""


def test_a_run_without_a_planner_ends_with_a_sentence(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {})
    with slurm.job("executors.sbatch", INFINIPIPE_PLANNER_TIMEOUT_S="1") as executors:
        output, _ = executors.communicate(timeout=LIMIT_S)
    assert executors.returncode == 1
    assert "no planner after 1 s: " in output


def test_a_planner_that_does_not_start_says_why_and_tells_no_address(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {})
    with slurm.job("planner.sbatch", "--tls-cert", "missing.pem") as planner:
        output, _ = planner.communicate(timeout=LIMIT_S)
    assert planner.returncode == 2, output
    assert "TLS needs both --tls-cert and --tls-key" in output
    assert not (slurm.run / "planner-address").exists()
