"""`infinipipe profile measure` ends like a run where the machine does not fit the layout."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from infinipipe_planner.cli import build_app
from support_e2e.runs import write_run


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_the_devices_of_the_layout_is_a_mistake_of_the_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    changes = {"cluster": {"device": "cuda"}, "model": {"dtype": "bfloat16"}}
    config = write_run(tmp_path, pp_size=1, sp_size=1, changes=changes)

    ended = CliRunner().invoke(build_app(), ["profile", "measure", "--config", str(config)])

    assert ended.exit_code == 2
    assert "this node shows 0 CUDA devices" in ended.stderr
