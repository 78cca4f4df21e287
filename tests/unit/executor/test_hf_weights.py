"""Weights of a folder fit its configuration, or every tensor at fault is named before anything starts."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.hf_names import to_hf
from infinipipe_executor.model.hf_weights import HfWeights
from infinipipe_executor.model.source import open_model
from support_executor.hf_folders import tensors_of, write_folder
from support_executor.hf_runs import run_config

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NORM = "model.norm.weight"


def open_folder(folder: Path) -> HfWeights:
    weights = open_model(run_config(folder)).weights
    assert weights is not None
    return weights


def refusal_of(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without(*names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors_of().items() if name not in names}


def test_rows_come_from_the_file_that_holds_them(tmp_path: Path) -> None:
    tensors = tensors_of()
    parts = {f"part-{index}.safetensors": dict(list(tensors.items())[index::3]) for index in range(3)}
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for file_name, part in parts.items():
        save_file(part, tmp_path / file_name)
    index = {name: file_name for file_name, part in parts.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    weights = open_folder(tmp_path)

    for name in ("layers.2.attention.k.weight", "embedding.weight", "head.weight", "norm.weight"):
        assert torch.equal(weights.read_rows(name, 3, 9), tensors[to_hf(name)][3:9])


@pytest.mark.parametrize(
    ("tensors", "ties", "sentence"),
    [
        (tensors_of(), False, None),
        (without(HEAD), True, None),
        (tensors_of() | {HEAD: tensors_of()[EMBEDDING].clone()}, True, None),
        (without(HEAD), False, "lm_head.weight is missing; its config.json does not say tie_word_embeddings"),
        (tensors_of(), True, "its config.json says tie_word_embeddings, but lm_head.weight differs from model.embed_"),
    ],
    ids=["untied with head", "tied without head", "tied with equal head", "untied without head", "tied with head"],
)
def test_the_head_is_tied_where_configuration_and_weights_agree(
    tmp_path: Path, tensors: dict[str, Tensor], ties: bool, sentence: str | None
) -> None:
    write_folder(tmp_path, tensors, tie_word_embeddings=ties)

    if sentence is None:
        assert (HEAD in open_folder(tmp_path).files) is not ties
    else:
        assert sentence in refusal_of(tmp_path)


def test_constants_of_old_checkpoints_are_left_out(tmp_path: Path) -> None:
    constants = {f"model.layers.{index}.self_attn.rotary_emb.inv_freq": torch.ones(4) for index in range(4)}
    write_folder(tmp_path, tensors_of() | constants)

    assert open_folder(tmp_path).constants == tuple(sorted(constants))


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (without(NORM), "model.norm.weight is missing"),
        (
            tensors_of() | {"model.layers.4.mlp.up_proj.weight": torch.ones(2)},
            "model.layers.4.mlp.up_proj.weight is not of this model",
        ),
        (tensors_of() | {NORM: torch.ones(7)}, "model.norm.weight [7] instead of [32] is of another shape"),
        (
            tensors_of() | {NORM: torch.ones(32, dtype=torch.int8)},
            "model.norm.weight (I8) is of a type other than F64, F32, F16, BF16",
        ),
        (
            {name: tensor for name, tensor in tensors_of().items() if "layers.3" not in name},
            "model.layers.3.input_layernorm.weight, model.layers.3.self_attn.q_proj.weight, "
            "model.layers.3.self_attn.k_proj.weight, model.layers.3.self_attn.v_proj.weight and 5 more are missing",
        ),
    ],
)
def test_tensors_that_are_not_those_of_the_model_are_named(
    tmp_path: Path, tensors: dict[str, Tensor], sentence: str
) -> None:
    write_folder(tmp_path, tensors)

    assert sentence in refusal_of(tmp_path)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path, {**without(NORM), "stray": torch.ones(1)})

    assert refusal_of(tmp_path).endswith("model.norm.weight is missing; stray is not of this model")


def test_a_folder_without_safetensors_is_refused_and_what_it_has_instead_is_said(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "model.safetensors").unlink()
    assert refusal_of(tmp_path).endswith(
        "has neither model.safetensors nor model.safetensors.index.json ([model] path)"
    )

    (tmp_path / "pytorch_model.bin").touch()
    assert "(it has pytorch_model.bin: only safetensors are read)" in refusal_of(tmp_path)


def test_a_file_that_the_index_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}')
    assert "lacks one.safetensors, which its model.safetensors.index.json names" in refusal_of(tmp_path)

    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    assert "weight_map must map names of tensors to names of files" in refusal_of(tmp_path)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = write_folder(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])

    assert f"{path} cannot be read: " in refusal_of(tmp_path)
