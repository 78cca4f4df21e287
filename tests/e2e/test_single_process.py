"""A run of one rank needs no torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infinipipe_contract.codec import profile_to_json
from support_e2e.busy_planner import busy_planner
from support_e2e.runs import Sections, tiny_profile, write_run

pytestmark = pytest.mark.e2e


def test_one_process_trains_without_torchrun(tmp_path: Path) -> None:
    changes: Sections = {
        "job": {"steps": 2},
        "cluster": {"device_memory_mib": 4.0},
        "checkpoint": {"folder": "saved", "every_steps": 9},
    }
    config = write_run(tmp_path, pp_size=1, sp_size=1, changes=changes)
    profile = tiny_profile(1, 1, 4 * 2**20)
    (tmp_path / "profile.json").write_text(profile_to_json(profile))
    environment = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "MASTER_ADDR")}

    with busy_planner(profile, busy_step=1, busy_s=0.0) as address:
        command = [sys.executable, "-m", "infinipipe_executor", "--config", str(config), "--planner", address]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split("  ")[0] for line in ended.stdout.splitlines() if "  loss " in line] == [
        "step 0 of 2",
        "step 1 of 2",
    ]
    assert (tmp_path / "saved/step-2/checkpoint.json").is_file()
