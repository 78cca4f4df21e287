"""What lies beside the tensors of a checkpoint, and when the cost model of an earlier start is used again."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from infinipipe_executor.checkpoint_files import RunFacts
from infinipipe_executor.config import RunConfig, load_config
from infinipipe_executor.model.model_file import ModelDescription, read_model_file
from infinipipe_executor.resume import companions, saved_profile
from support_e2e.runs import TINY, tiny_profile, write_run

FACTS = RunFacts(step=3, fixed={}, layout={"pp": 2, "sp": 1}, device="2 CPU cores")
MEASURED = replace(tiny_profile(2, 1), comment="measured at the first start")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run whose checkpoint holds a measured cost model."""
    config = load_config(write_run(tmp_path, pp_size=2, sp_size=1))
    companions(ModelDescription(TINY, 128, None, None), MEASURED, None)(tmp_path)
    return config


def test_the_same_layout_and_device_plan_with_the_cost_model_of_the_first_start(
    tmp_path: Path, config: RunConfig
) -> None:
    assert saved_profile(config, TINY, 4, (2, 2), replace(FACTS, step=0), (tmp_path, FACTS)) == MEASURED


@pytest.mark.parametrize("change", [{"layout": {"pp": 1, "sp": 2}}, {"device": "another GPU"}])
def test_another_layout_or_device_is_measured_anew(
    tmp_path: Path, config: RunConfig, change: dict[str, object]
) -> None:
    assert saved_profile(config, TINY, 4, (2, 2), replace(FACTS, **change), (tmp_path, FACTS)) is None  # type: ignore[arg-type]


def test_a_cost_model_of_another_type_of_activations_is_measured_anew_and_the_reason_said(
    tmp_path: Path, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="infinipipe_executor"):
        assert saved_profile(config, TINY, 2, (2, 2), FACTS, (tmp_path, FACTS)) is None

    assert "the cost model of the checkpoint is not used, and is measured again: " in caplog.text
    assert "model.dtype_bytes is 4, the configuration makes it 2" in caplog.text


def test_another_division_of_the_layers_is_measured_anew(tmp_path: Path, config: RunConfig) -> None:
    assert saved_profile(config, TINY, 4, (3, 1), FACTS, (tmp_path, FACTS)) is None


def test_without_a_checkpoint_there_is_nothing_to_use_again(config: RunConfig) -> None:
    assert saved_profile(config, TINY, 4, (2, 2), FACTS, None) is None


def test_the_sizes_of_the_model_lie_beside_the_tensors_for_an_export(tmp_path: Path, config: RunConfig) -> None:
    assert config.model.layers == TINY.layers
    assert read_model_file(tmp_path) == ModelDescription(TINY, 128, None, None)


def test_what_lies_beside_the_tensors_has_reached_the_disk_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[path.name] = path.stat().st_size

    monkeypatch.setattr(os, "fsync", note)

    companions(ModelDescription(TINY, 128, None, None), MEASURED, None)(tmp_path)

    assert synced == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(synced) == {"model.json", "profile.json"}
