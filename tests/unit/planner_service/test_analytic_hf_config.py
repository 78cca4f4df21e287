"""Configurations of Hugging Face models: what is read from them and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from infinipipe_contract.model_memory import parameter_count
from infinipipe_planner.analytic.hf_config import ModelConfigError, decoder_shape, read_decoder_shape
from support_analytic import KNOWN_MODELS

LLAMA = KNOWN_MODELS["Llama-3-8B"].config
MISTRAL = KNOWN_MODELS["Mistral-7B"].config
QWEN2 = KNOWN_MODELS["Qwen2-7B"].config
QWEN3 = KNOWN_MODELS["Qwen3-0.6B"].config


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_a_known_model_has_the_number_of_parameters_that_it_is_known_to_have(name: str) -> None:
    assert parameter_count(decoder_shape(KNOWN_MODELS[name].config)) == KNOWN_MODELS[name].parameter_count


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_an_old_llama_has_as_many_key_heads_as_query_heads_which_share_the_hidden_size(key: str) -> None:
    shape = decoder_shape(without(KNOWN_MODELS["Llama-2-7B"].config, key))

    assert (shape.kv_heads, shape.head_dim) == (32, 128)


def test_the_head_dim_of_the_file_wins_over_the_share_of_the_hidden_size() -> None:
    shape = decoder_shape(QWEN3)

    assert (shape.hidden // shape.heads, shape.head_dim, shape.query_dim) == (64, 128, 2048)


def test_qwen3_without_a_head_dim_has_its_own_default() -> None:
    assert decoder_shape(without(QWEN3, "head_dim")).head_dim == 128


def test_a_head_dim_of_null_is_as_good_as_none() -> None:
    assert decoder_shape({**MISTRAL, "head_dim": None}).head_dim == 128


def test_the_sizes_of_a_model_of_several_parts_lie_in_its_text_config() -> None:
    nested = {"model_type": "mistral3", "vision_config": {}, "text_config": {**MISTRAL, "head_dim": 160}}

    assert decoder_shape(nested).head_dim == 160


@pytest.mark.parametrize("level", ["outer", "inner"])
def test_tied_embeddings_may_be_said_on_either_level(level: str) -> None:
    tie = {"tie_word_embeddings": True}
    nested = {"text_config": LLAMA | tie} if level == "inner" else {"text_config": LLAMA, **tie}

    assert decoder_shape(nested).ties_embeddings


def test_the_architecture_stands_in_for_a_missing_model_type() -> None:
    shape = decoder_shape({**without(QWEN2, "model_type"), "architectures": ["Qwen2ForCausalLM"]})

    assert shape.has_qkv_bias


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {**LLAMA, "model_type": "mixtral"},
            'model_type is "mixtral", which is not supported; supported are llama, mistral, qwen2, qwen3',
        ),
        (
            {**without(LLAMA, "model_type"), "architectures": ["GPT2LMHeadModel"]},
            'model_type is "GPT2LMHeadModel", which is not supported; supported are llama, mistral, qwen2, qwen3',
        ),
        ({**LLAMA, "model_type": ["llama"]}, 'model_type is ["llama"], which is not supported'),
        (without(LLAMA, "model_type"), "the key model_type is missing"),
        (without(LLAMA, "num_hidden_layers"), "the key num_hidden_layers is missing"),
        (without(QWEN2, "num_key_value_heads"), "the key num_key_value_heads is missing"),
        ({**LLAMA, "hidden_size": "4096"}, 'hidden_size is "4096", it must be a whole number of at least 1'),
        ({**LLAMA, "vocab_size": 0}, "vocab_size is 0, it must be a whole number of at least 1"),
        ({**LLAMA, "vocab_size": True}, "vocab_size is true, it must be a whole number of at least 1"),
        (
            {**LLAMA, "num_key_value_heads": 5},
            "num_key_value_heads is 5, it must divide num_attention_heads, which is 32",
        ),
        (
            {**LLAMA, "hidden_size": 4000, "num_attention_heads": 48},
            "the key head_dim is missing, and hidden_size, which is 4000, is no multiple of num_attention_heads",
        ),
        ({**LLAMA, "hidden_act": "gelu"}, 'hidden_act is "gelu", only silu is supported'),
        ({**LLAMA, "attention_bias": True}, "attention_bias is true: a bias on all projections is not supported"),
        ({**MISTRAL, "sliding_window": 4096}, "sliding_window is 4096"),
        (without(MISTRAL, "sliding_window"), "sliding_window is 4096 (4096 where it is absent, null means none)"),
        ({**QWEN2, "use_sliding_window": True}, "use_sliding_window is true"),
        ({**LLAMA, "tie_word_embeddings": "no"}, 'tie_word_embeddings is "no", it must be true or false'),
        (
            {"text_config": {**LLAMA, "tie_word_embeddings": False}, "tie_word_embeddings": True},
            "tie_word_embeddings differs between the configuration and its text_config",
        ),
        ({"text_config": 5}, "text_config is 5, it must be an object"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_key_and_its_value(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        decoder_shape(config)

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"a": \n oops}', "not JSON, line 2 column 2: Expecting value"),
        (b"\xff\xfe", "not a text file (UTF-8), byte 0"),
        (b"[1]", "a configuration is a JSON object, found list"),
        (b"{}", "the key model_type is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_name(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(ModelConfigError) as caught:
        read_decoder_shape(path)

    assert str(caught.value) == f"{path}: {sentence}"


def test_a_file_that_does_not_exist_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="cannot read .*none.json: No such file"):
        read_decoder_shape(tmp_path / "none.json")


def test_a_file_is_read_as_its_content(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))

    assert read_decoder_shape(path) == decoder_shape(LLAMA)
