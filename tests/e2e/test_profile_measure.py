"""`infinipipe profile measure` writes a profile that a run takes and that knows how far it was measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_contract.codec import profile_from_json
from infinipipe_executor.config import load_config
from infinipipe_executor.profile_file import read_profile
from infinipipe_planner.cli import build_app
from support_e2e.runs import TINY, write_run

pytestmark = pytest.mark.e2e

INFINIPIPE = Path(sys.executable).with_name("infinipipe")


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(INFINIPIPE), "profile", "measure", *map(str, arguments)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_one_process_measures_its_machine_and_whoever_plans_beyond_it_is_warned(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=1, sp_size=1, changes={"cluster": {"device_memory_mib": 64.0}})
    target, lengths = tmp_path / "measured.json", tmp_path / "lengths.txt"

    result = run_command("--config", config, "-o", target)

    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    profile = profile_from_json(target.read_text())
    assert profile.measured_tokens == 128
    assert "passes not seen by the fit are off by" in profile.comment
    assert profile.comment in result.stderr
    run = load_config(config)
    planner = run.planner.model_copy(update={"profile": str(target)})
    assert read_profile(run.model_copy(update={"planner": planner}), TINY, dtype_bytes=4) == profile

    lengths.write_text("100\n128\n")
    within = CliRunner().invoke(build_app(), ["plan", "--profile", str(target), "--lengths", str(lengths)])
    assert (within.exit_code, within.stderr) == (0, "")
    lengths.write_text("100\n129\n")
    beyond = CliRunner().invoke(build_app(), ["plan", "--profile", str(target), "--lengths", str(lengths)])
    assert beyond.exit_code == 0
    assert beyond.stderr == (
        "warning: profile measured-cpu-pp1-sp1 was measured with up to 128 tokens, a sequence has 129: "
        "its predicted times are extrapolated\n"
    )


def test_a_layout_of_more_ranks_than_were_started_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    result = run_command("--config", write_run(tmp_path, pp_size=2, sp_size=2))

    assert result.returncode == 2
    assert result.stderr.startswith("error: 1 ranks were started, [cluster] dp_size 1 x pp_size 2 x sp_size 2 needs 4")
