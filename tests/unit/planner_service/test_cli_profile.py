"""`infinipipe profile analytic`: what it writes, and what it says about mistakes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import profile_from_json
from infinipipe_contract.hf_config import parse_hf_config
from infinipipe_contract.model_memory import parameter_count
from infinipipe_planner.cli import build_app
from support_analytic import KNOWN_MODELS


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "Llama-3-8B" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(KNOWN_MODELS["Llama-3-8B"].config))
    return path


def run(model: Path, **changes: object) -> Result:
    options = {"device": "h100", "nodes": 4, "devices_per_node": 8, "pp": 4, "sp": 8} | changes
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return CliRunner().invoke(build_app(), ["profile", "analytic", "--model", str(model), *words])


def test_the_profile_is_printed_and_called_by_the_folder_of_the_model(model_path: Path) -> None:
    result = run(model_path)

    assert (result.exit_code, result.stderr) == (0, "")
    profile = profile_from_json(result.stdout)
    assert profile.name == "Llama-3-8B-h100-4x8-pp4-sp8"
    assert (profile.cluster.pp_size, profile.cluster.sp_size, profile.model.layers) == (4, 8, 32)


def test_the_profile_goes_to_a_file_when_asked(model_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "profile.json"

    result = run(model_path, output=target)

    assert (result.exit_code, result.stdout) == (0, "")
    assert profile_from_json(target.read_text()).cluster.sp_size == 8


def test_a_run_that_holds_whole_gradients_has_a_profile_that_counts_them(model_path: Path) -> None:
    divided, whole = (
        profile_from_json(run(model_path, gradient_policy=policy).stdout) for policy in ("zero3", "zero2")
    )

    assert run(model_path).stdout == run(model_path, gradient_policy="zero3").stdout
    shape = parse_hf_config(KNOWN_MODELS["Llama-3-8B"].config).shape
    for stage_index in range(4):
        parameters = parameter_count(shape, 4, stage_index, stage_layers=whole.stage_layers)
        more_bytes = whole.memory.model_state_bytes[stage_index] - divided.memory.model_state_bytes[stage_index]
        assert more_bytes == pytest.approx(4 * parameters * 7 / 8)
    assert "whole gradients of its stage (zero2)" in whole.comment


def test_a_device_is_known_in_capitals_too(model_path: Path) -> None:
    assert run(model_path, device="H100").stdout == run(model_path).stdout


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "h10"}, "error: unknown device 'h10'; did you mean 'h100'?"),
        ({"pp": 5}, "error: pp_size 5 x sp_size 8 is 40 devices, the cluster has 32"),
        ({"pp": 1, "sp": 64, "nodes": 8}, "error: 32 query heads cannot be divided among sp_size 64 ranks"),
        ({"pp": 0}, "Invalid value for '--pp'"),
        ({"gradient_policy": "zero1"}, "Invalid value for '--gradient-policy'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(model_path: Path, changes: dict[str, object], sentence: str) -> None:
    result = run(model_path, **changes)

    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unsupported_model_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mixtral"}')

    result = run(path)

    assert result.exit_code == 2
    assert result.stderr == (
        f'error: {path}: model_type is "mixtral", which is not supported; supported are llama, mistral, qwen2, qwen3\n'
    )
