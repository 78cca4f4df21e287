"""Shell scripts and the systemd unit: checked by the tools of their trade, and by our own parsers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infinipipe_executor.config import load_config
from support_deploy import DEPLOY, read_serve, read_torchrun, script_commands

SCRIPTS = sorted([*DEPLOY.glob("slurm/*.sbatch"), *DEPLOY.glob("docker/*.sh")])
UNIT = DEPLOY / "systemd" / "infinipipe-planner.service"
DROP_IN = DEPLOY / "systemd" / "infinipipe-planner.service.d" / "tls.conf"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def exec_start(path: Path) -> list[str]:
    lines = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
    return lines[-1].removeprefix("ExecStart=").split()


def test_shellcheck_finds_nothing() -> None:
    assert len(SCRIPTS) == 3
    checked = run(Path(sys.executable).with_name("shellcheck"), *SCRIPTS)
    assert checked.returncode == 0, checked.stdout


def test_the_commands_of_the_slurm_scripts_are_ones_that_we_take() -> None:
    (serve,) = script_commands((DEPLOY / "slurm" / "planner.sbatch").read_text(), "infinipipe")
    values = {"${INFINIPIPE_WORKERS:-8}": "8", "$listen": "node1:50051", "$@": "--insecure"}
    options = read_serve([values.get(word, word) for word in serve])
    assert options["workers"] == 8
    assert options["store"] == "$run/planner.sqlite"
    script = (DEPLOY / "slurm" / "executors.sbatch").read_text()
    (torchrun,) = script_commands(script, "torchrun")
    launch, executor = read_torchrun(["8" if "RANKS_PER_NODE" in word else word for word in torchrun])
    assert (launch.rdzv_backend, launch.max_restarts) == ("c10d", 3)
    assert str(executor.config) == "$run/run.toml"


def test_the_slurm_jobs_resources_fit_the_configuration_beside_them() -> None:
    script = (DEPLOY / "slurm" / "executors.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    config = load_config(DEPLOY / "slurm" / "run.toml")
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == config.cluster.pp_size * config.cluster.sp_size
    assert config.cluster.sp_size == int(asked["gpus-per-node"]), "a stage's ranks lie on one node"
    left_s = int(asked["signal"].partition("@")[2])
    shutdown = re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", script)
    assert shutdown is not None
    assert int(shutdown[1]) < left_s
    assert asked["ntasks-per-node"] == "1"
    assert config.checkpoint is not None, "a run that is queued again goes on from one"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("is_opened", [False, True], ids=["loopback", "tls"])
def test_systemd_accepts_the_unit_and_calls_it_well_confined(tmp_path: Path, is_opened: bool) -> None:
    unit = tmp_path / UNIT.name
    program = "/opt/infinipipe/bin/infinipipe"
    unit.write_text(UNIT.read_text().replace(program, shutil.which("true") or ""))
    if is_opened:
        folder = tmp_path / DROP_IN.parent.name
        folder.mkdir()
        (folder / DROP_IN.name).write_text(DROP_IN.read_text().replace(program, shutil.which("true") or ""))
    verified = run("systemd-analyze", "verify", "--recursive-errors=no", "--man=no", unit)
    assert verified.returncode == 0, verified.stderr
    assert UNIT.name not in verified.stderr
    confined = run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
    assert confined.returncode == 0, confined.stdout


def test_the_units_commands_are_ones_that_the_planner_takes() -> None:
    alone, opened = read_serve(exec_start(UNIT)), read_serve(exec_start(DROP_IN))
    assert alone["listen"] == "127.0.0.1:50051"
    assert {name for name in alone if alone[name] != opened[name]} == {"listen", "tls_cert", "tls_key", "tokens"}
    named = re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", DROP_IN.read_text())
    loaded = re.findall(r"^LoadCredential=([^:]+):", DROP_IN.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(loaded)


def test_the_units_state_directory_holds_the_store() -> None:
    assert read_serve(exec_start(UNIT))["store"] == "${STATE_DIRECTORY}/planner.sqlite"
    assert "StateDirectory=infinipipe" in UNIT.read_text()
