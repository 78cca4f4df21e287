"""A run that is given no tokenizer: its checkpoint is exported with the one that it trained."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from infinipipe_executor.config import load_config
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_planner.cli import build_app
from support_e2e.planner import ThreadSolver, planner_thread
from support_e2e.runs import TINY, Sections, torchrun, write_run

pytestmark = pytest.mark.e2e


def test_an_exported_model_comes_with_the_tokenizer_that_its_run_trained_though_the_cache_is_gone(
    tmp_path: Path,
) -> None:
    changes: Sections = {
        "job": {"steps": 1},
        "cluster": {"device_memory_mib": 4.0},
        "checkpoint": {"folder": "checkpoints", "every_steps": 1},
    }
    config = write_run(tmp_path, pp_size=1, sp_size=1, changes=changes)

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=1)
    assert ended.code == 0, ended.output
    trained_on = open_corpus(load_config(config).data, TINY.vocab).sequence(1).token_ids.tolist()
    shutil.rmtree(tmp_path / "cache")
    checkpoint, output = tmp_path / "checkpoints" / "step-1", tmp_path / "exported"
    exported = CliRunner().invoke(build_app(), ["export", str(checkpoint), "--output", str(output)])

    assert exported.exit_code == 0, exported.output
    assert exported.stdout.endswith("tokenizer: tokenizer.json\n")
    text = (tmp_path / "texts" / "01.txt").read_text()
    assert Tokenizer.from_file(str(output / "tokenizer.json")).encode(text).ids[: len(trained_on)] == trained_on
