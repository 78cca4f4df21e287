"""`infinipipe export`: what it writes, and what it says about checkpoints that it cannot export."""

import json
import resource
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save
from typer.testing import CliRunner, Result

from infinipipe_executor.checkpoint_state import KEY_PREFIX
from infinipipe_executor.model.export import export_checkpoint
from infinipipe_executor.model.hf_names import to_hf
from infinipipe_executor.model.model_file import ModelDescription, write_model_file
from infinipipe_executor.resume import companions
from infinipipe_planner.cli import build_app
from support_e2e.runs import tiny_profile
from support_executor.closeness import relative_error
from support_executor.plans import make_batch
from support_executor.reference import TINY, make_weights, reference_logits

TIED = replace(TINY, ties_embeddings=True, rope_theta=500.0, norm_eps=1e-3)


def write_checkpoint(folder: Path, weights: dict[str, Tensor], tokenizer: Path | None = None) -> Path:
    """Write a checkpoint of the tied model, with a part of an optimizer in it as real ones have."""
    state = {KEY_PREFIX + name: weight.detach() for name, weight in weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group, as is meant
        save({**state, "optimizer.norm.weight.exp_avg": torch.ones(32), "step": 7}, checkpoint_id=folder)
    write_model_file(folder, ModelDescription(TIED, 64, None, tokenizer))
    return folder


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    drawn = make_weights(TIED, 5, torch.float32)
    return {name: torch.randn(weight.shape, generator=generator) * 0.2 for name, weight in drawn.items()}


@pytest.fixture(scope="module")
def checkpoint(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_checkpoint(tmp_path_factory.mktemp("run") / "step-7", weights)


def run(*words: object) -> Result:
    return CliRunner().invoke(build_app(), ["export", *map(str, words)])


def refusal_of(*words: object, code: int = 2) -> str:
    result = run(*words)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_a_model_given_by_its_sizes_becomes_a_llama_with_the_same_logits(
    checkpoint: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    result = run(checkpoint, "-o", tmp_path / "out")

    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("in one file; no tokenizer: the run was given none\n")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (type(model).__name__, model.dtype) == ("LlamaForCausalLM", torch.float32)
    assert model.config.max_position_embeddings == 64
    token_ids = make_batch([40]).sequences[0].token_ids
    with torch.no_grad():
        logits = model(token_ids[None]).logits[0]
    assert relative_error(logits, reference_logits(TIED, weights, token_ids)) <= 1e-5


def test_large_models_go_into_several_files_with_an_index(
    checkpoint: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    lines: list[str] = []
    report = export_checkpoint(checkpoint, tmp_path / "out", tell=lines.append, file_bytes=20_000)

    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert report.file_count == len(lines) == len(set(index["weight_map"].values())) > 2
    assert report.written_bytes == index["metadata"]["total_size"] == sum(weight.nbytes for weight in weights.values())
    for name, weight in weights.items():
        assert torch.equal(load_file(tmp_path / "out" / index["weight_map"][to_hf(name)])[to_hf(name)], weight)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors")]
    assert max(sizes) < 24_000


def test_the_files_of_the_tokenizer_come_along(weights: dict[str, Tensor], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "notes.txt"):
        (tmp_path / "model" / name).write_text(name)
    folder = write_checkpoint(tmp_path / "step-7", weights, tmp_path / "model" / "tokenizer.json")

    result = run(folder, "--output", tmp_path / "out")

    assert result.stdout.endswith("tokenizer: tokenizer.json, generation_config.json, tokenizer_config.json\n")
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == "tokenizer_config.json"
    assert not (tmp_path / "out" / "notes.txt").exists()

    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "no tokenizer: " in run(folder, "-o", tmp_path / "again").stdout


def test_a_tokenizer_that_the_run_trained_comes_out_of_the_checkpoint_though_the_cache_is_gone(
    weights: dict[str, Tensor], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    trained = tmp_path / "cache" / "tokenizer.json"
    trained.write_text("trained")
    description = ModelDescription(TIED, 64, None, trained)
    folder = write_checkpoint(tmp_path / "step-7", weights)
    companions(description, tiny_profile(1, 1), trained)(folder)
    shutil.rmtree(tmp_path / "cache")

    result = run(folder, "-o", tmp_path / "out")

    assert result.stdout.endswith("tokenizer: tokenizer.json\n")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "trained"


def test_what_lies_at_the_output_already_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(checkpoint, "-o", tmp_path / "out").exit_code == 0

    message = refusal_of(checkpoint, "-o", tmp_path / "out")

    assert "out exists and is not an empty folder (--output)" in message


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "is no checkpoint of a model" in refusal_of(tmp_path, "-o", tmp_path / "out")

    write_model_file(tmp_path, ModelDescription(TIED, 64, None, None))
    assert "is no checkpoint, or a broken one" in refusal_of(tmp_path, "-o", tmp_path / "out")


def test_parameters_that_are_missing_or_of_another_shape_are_named(weights: dict[str, Tensor], tmp_path: Path) -> None:
    wrong = {name: weight for name, weight in weights.items() if name != "norm.weight"}
    wrong |= {"embedding.weight": torch.ones(5, 32), "head.weight": torch.ones(97, 32)}
    folder = write_checkpoint(tmp_path / "step-7", wrong)

    message = refusal_of(folder, "-o", tmp_path / "out")

    assert "embedding.weight has the shape [5, 32], norm.weight is missing, head.weight is not of this model" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["lost", "cut off"])
def test_a_broken_checkpoint_leaves_nothing_behind(weights: dict[str, Tensor], tmp_path: Path, fault: str) -> None:
    folder = write_checkpoint(tmp_path / "step-7", weights)
    data = next(folder.glob("*.distcp"))
    data.unlink() if fault == "lost" else data.write_bytes(data.read_bytes()[:5000])

    message = refusal_of(folder, "-o", tmp_path / "out")

    assert f"{folder} is broken: " in message
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


def test_an_output_that_cannot_be_written_is_said(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "cannot write" in refusal_of(checkpoint, "-o", tmp_path / "file" / "out", code=1)


def test_a_full_disk_is_said_and_leaves_nothing_behind(checkpoint: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        message = refusal_of(checkpoint, "-o", tmp_path / "out", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "cannot write" in message
    assert not list(tmp_path.iterdir())


def test_without_torch_the_command_says_what_to_install(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "infinipipe_executor.model.export")
    monkeypatch.setitem(sys.modules, "torch", None)

    message = refusal_of(checkpoint, "-o", tmp_path / "out", code=1)

    assert message == "error: this command needs torch, which is not installed: pip install 'infinipipe[executor]'\n"
