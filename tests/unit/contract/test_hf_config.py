"""Configurations of Hugging Face models: what is read from them and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import parse_hf_config, read_hf_config
from infinipipe_contract.model_memory import DecoderShape, parameter_count
from infinipipe_contract.rope import Rope, RopeScaling
from support_analytic import KNOWN_MODELS

LLAMA = KNOWN_MODELS["Llama-3-8B"].config
MISTRAL = KNOWN_MODELS["Mistral-7B"].config
QWEN2 = KNOWN_MODELS["Qwen2-7B"].config
QWEN3 = KNOWN_MODELS["Qwen3-0.6B"].config


LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
READ_SCALING = RopeScaling(32.0, 1.0, 4.0, 8192)


def decoder_shape(config: dict[str, Any]) -> DecoderShape:
    return parse_hf_config(config).shape


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


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500000.0}},
        {"rope_theta": 500000, "rope_scaling": {**without(LLAMA3_SCALING, "rope_type"), "type": "llama3"}},
    ],
    ids=["transformers 4", "transformers 5", "older key"],
)
def test_rotary_positions_may_be_written_in_the_old_and_in_the_new_way(rope: dict[str, Any]) -> None:
    assert parse_hf_config({**without(LLAMA, "rope_theta"), **rope}).rope == Rope(500000.0, READ_SCALING)


@pytest.mark.parametrize("rope", [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}], ids=str)
def test_angles_are_plain_unless_something_is_said(rope: dict[str, Any]) -> None:
    assert parse_hf_config({**without(LLAMA, "rope_theta"), **rope}).rope == Rope(10000.0, None)


@pytest.mark.parametrize(
    ("config", "window_tokens"),
    [
        (without(MISTRAL, "sliding_window"), 4096),
        ({**MISTRAL, "sliding_window": 100}, 100),
        ({**QWEN2, "use_sliding_window": True}, 131072),
        (QWEN2, None),
        (MISTRAL, None),
        ({**LLAMA, "sliding_window": 7}, None),
    ],
)
def test_mistral_has_a_window_unless_it_says_null_and_qwen_only_where_it_is_switched_on(
    config: dict[str, Any], window_tokens: int | None
) -> None:
    assert parse_hf_config(config).window_tokens == window_tokens


def test_a_window_is_refused_unless_every_sequence_fits_into_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MISTRAL | {"sliding_window": 4096}))

    assert read_hf_config(path, longest_tokens=4096).window_tokens == 4096
    with pytest.raises(ModelConfigError, match=r"config.json: sliding_window is 4096 .* have up to 4097 tokens: att"):
        read_hf_config(path, longest_tokens=4097)
    with pytest.raises(ModelConfigError, match="sequences may be longer: attention within a window is not supported"):
        read_hf_config(path)


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
        ({**MISTRAL, "sliding_window": -1}, "sliding_window is -1, it must be a whole number of at least 1"),
        ({**LLAMA, "attention_dropout": 0.1}, "attention_dropout is 0.1: dropout within attention is not supported"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config is given: quantised weights are not"),
        ({**QWEN3, "layer_types": ["linear_attention"]}, 'layer_types has "linear_attention", supported are'),
        ({**LLAMA, "rms_norm_eps": 0}, "rms_norm_eps is 0, it must be a number above 0"),
        ({**LLAMA, "rope_theta": "1e4"}, 'rope_theta is "1e4", it must be a number above 0'),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor is not 1"),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
            'rope_type is "linear" in rope_scaling, supported are default and llama3',
        ),
        (
            {**LLAMA, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
            'rope_type is "yarn" in rope_parameters, supported are default and llama3',
        ),
        ({**LLAMA, "rope_scaling": {"factor": 2.0}}, 'rope_scaling has no rope_type: {"factor": 2.0}'),
        ({**LLAMA, "rope_scaling": "llama3"}, 'rope_scaling is "llama3", it must be an object'),
        (
            {**LLAMA, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta is 10000, but 500000 in rope_parameters",
        ),
        (
            {**LLAMA, "rope_scaling": LLAMA3_SCALING, "rope_parameters": {"rope_type": "default"}},
            "rope_parameters and rope_scaling are both given and differ",
        ),
        ({**LLAMA, "rope_scaling": without(LLAMA3_SCALING, "factor")}, "the key factor is missing"),
        (
            {**LLAMA, "rope_scaling": {**LLAMA3_SCALING, "high_freq_factor": 1}},
            "high_freq_factor is 1 in rope_scaling, it must be more than low_freq_factor, which is 1",
        ),
        ({**LLAMA, "rope_scaling": {**LLAMA3_SCALING, "factor": 0.5}}, "factor is 0.5 in rope_scaling, it must be"),
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
        parse_hf_config(config)

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"a": \n oops}', "not JSON, line 2 column 2: Expecting value"),
        (b"\xff\xfe", "not a text file (UTF-8), byte 0"),
        (b"[1]", "it must hold a JSON object, found list"),
        (b"{}", "the key model_type is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_name(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)

    with pytest.raises(ModelConfigError) as caught:
        read_hf_config(path)

    assert str(caught.value) == f"{path}: {sentence}"


def test_a_file_that_does_not_exist_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="cannot read .*none.json: No such file"):
        read_hf_config(tmp_path / "none.json")


def test_a_file_is_read_as_its_content(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))

    assert read_hf_config(path) == parse_hf_config(LLAMA)
