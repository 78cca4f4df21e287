"""Where the model of a run comes from."""

import logging
from pathlib import Path

import pytest

from infinipipe_executor.config import load_config
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.model_file import MODEL_FILE, read_model_file, write_model_file
from infinipipe_executor.model.source import data_of_model, open_model
from infinipipe_executor.model.stage import initial_parameter, parameter_shapes
from support_executor.hf_folders import write_folder
from support_executor.hf_runs import SIZES, run_config
from support_executor.reference import FAMILIES, TINY


def refusal_of(folder: Path, **options: int) -> str:
    with pytest.raises(ConfigError) as caught:
        open_model(run_config(folder, **options))
    return str(caught.value)


def test_sizes_make_a_model_whose_weights_are_drawn() -> None:
    source = open_model(run_config(None))

    assert source.weights is None
    assert source.config == ModelConfig(**SIZES)
    assert data_of_model(run_config(None)).tokenizer is None


def test_a_checkpoint_remembers_a_trained_tokenizer_only_where_none_was_given(tmp_path: Path) -> None:
    trained = Path("cache/tokens-1/tokenizer.json")

    assert open_model(run_config(None)).describe(trained).tokenizer == trained
    assert open_model(run_config(None)).describe(None).tokenizer is None
    given = open_model(run_config(write_folder(tmp_path))).describe(trained).tokenizer
    assert given == tmp_path / "tokenizer.json"


def test_a_folder_makes_the_model_that_it_describes(tmp_path: Path) -> None:
    assert open_model(run_config(write_folder(tmp_path))).config == TINY


def test_a_window_smaller_than_the_context_is_refused_with_both(tmp_path: Path) -> None:
    write_folder(tmp_path, model_type="mistral", sliding_window=48)

    assert open_model(run_config(tmp_path, context_tokens=48)).config == TINY
    message = refusal_of(tmp_path, context_tokens=64)
    assert "sliding_window is 48" in message
    assert "[data] context_tokens is 64" in message


def test_a_decoder_that_is_a_part_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, text_config={"model_type": "mistral", **_sizes_of_tiny(), "sliding_window": None})

    assert "the model has several parts (text_config)" in refusal_of(tmp_path)


def _sizes_of_tiny() -> dict[str, int]:
    return {
        "num_hidden_layers": TINY.layers,
        "hidden_size": TINY.hidden,
        "num_attention_heads": TINY.heads,
        "num_key_value_heads": TINY.kv_heads,
        "intermediate_size": TINY.ffn,
        "vocab_size": TINY.vocab,
    }


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert refusal_of(tmp_path / "none").startswith(f"cannot read {tmp_path}/none/config.json: No such file")


def test_a_context_beyond_what_the_model_was_made_for_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path)
    with caplog.at_level(logging.INFO, "infinipipe_executor"):
        open_model(run_config(tmp_path, context_tokens=64))
        open_model(run_config(tmp_path, context_tokens=65))

    within, beyond = caplog.messages
    assert within == f"model: {tmp_path} (llama), 39 tensors in one file"
    assert beyond.endswith(
        "made for sequences of up to 64 tokens (max_position_embeddings), [data] context_tokens is 65"
    )


def test_the_tokenizer_is_that_of_the_folder_unless_another_is_given(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"has no tokenizer.json, and none is given \(\[data\] tokenizer\)"):
        data_of_model(run_config(tmp_path))

    (tmp_path / "tokenizer.json").touch()
    assert data_of_model(run_config(tmp_path)).tokenizer == tmp_path / "tokenizer.json"
    assert data_of_model(run_config(tmp_path, tokenizer=Path("other.json"))).tokenizer == Path("other.json")


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_start_at_nought_and_norms_at_one(family: str) -> None:
    for name, shape in parameter_shapes(FAMILIES[family]).items():
        value = initial_parameter(name, shape, seed=0)
        if name.endswith(".bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert value.eq(1).all(), name
        else:
            assert 0.015 < value.std() < 0.025, name


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ('path = "m"\nlayers = 4', "[model] layers is 4: [model] path names a model with sizes of its own"),
        ("layers = 4", "[model] hidden is missing"),
        ("path = 5", "[model] path is 5: it must be a text that names a file or a folder"),
        ('path = "m"\ndrop = 0.1', "did you mean 'dropout'"),
    ],
)
def test_a_model_is_given_in_one_of_two_ways(tmp_path: Path, model: str, sentence: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(_run_text(model))

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert sentence in str(caught.value)


def test_the_folder_of_the_model_is_relative_to_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(_run_text('path = "models/m"\ndtype = "bfloat16"'))

    assert load_config(path).model.path == tmp_path / "models" / "m"


def _run_text(model: str) -> str:
    return f"""
[job]
name = "run"
steps = 1
[model]
{model}
[data]
corpus = "texts"
cache = "cache"
context_tokens = 64
beyond_context = "truncate"
sequences_per_batch = 1
[cluster]
pp_size = 1
sp_size = 1
device_memory_mib = 8
[optimizer]
learning_rate = 1e-3
"""


def test_what_a_checkpoint_remembers_of_its_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_folder(tmp_path / "model", rope_scaling=scaling | {"original_max_position_embeddings": 32})
    source = open_model(run_config(tmp_path / "model"))

    write_model_file(tmp_path, source.description)

    assert read_model_file(tmp_path) == source.description
    assert source.config.rope_scaling is not None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is no checkpoint of a model: cannot read"),
        ("{}", "model.json: config: Field required"),
        ('{"config": {"layers": "many"}}', "model.json: config.layers"),
    ],
)
def test_a_checkpoint_without_a_model_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / MODEL_FILE).write_text(content)

    with pytest.raises(ConfigError) as caught:
        read_model_file(tmp_path)

    assert sentence in str(caught.value)
