"""Reads the ``config.json`` of a Hugging Face model: sizes are taken from it, and nothing that matters is assumed.

Where a key may be absent, the model's own default is taken; what the executor cannot run is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infinipipe_contract.json_text import JsonTextError, parse_json
from infinipipe_contract.model_memory import DecoderShape
from infinipipe_planner.errors import PlannerError

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
    }
)
"""Supported ``model_type`` by the architecture that stands for it where only ``architectures`` is given."""

_QWEN3_DEFAULT_HEAD_DIM = 128
_MISTRAL_DEFAULT_WINDOW = 4096


class ModelConfigError(PlannerError):
    """A model's configuration cannot be read or describes a model that is not supported; one sentence says why."""


def read_decoder_shape(path: Path) -> DecoderShape:
    """Read the sizes of a model.

    Args:
        path: The model's ``config.json``.

    Raises:
        ModelConfigError: If it cannot be read, lacks a key or describes a model that is not supported.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelConfigError(f"{path}: not a text file (UTF-8), byte {error.start}") from None
    except JsonTextError as error:
        raise ModelConfigError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise ModelConfigError(f"{path}: a configuration is a JSON object, found {type(content).__name__}")
    try:
        return decoder_shape(content)
    except ModelConfigError as error:
        raise ModelConfigError(f"{path}: {error}") from None


def decoder_shape(content: Mapping[str, Any]) -> DecoderShape:
    """Take the sizes out of a parsed configuration; those of a model of several parts lie in its ``text_config``.

    Raises:
        ModelConfigError: If a key is missing or describes a model that is not supported.
    """
    config = content.get("text_config", content)
    if not isinstance(config, Mapping):
        raise ModelConfigError(f"text_config is {json.dumps(config)}, it must be an object")
    family = _family(config)
    _refuse_unsupported(config, family)
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads", default=heads if family == "llama" else None)
    if heads % kv_heads:
        raise ModelConfigError(
            f"num_key_value_heads is {kv_heads}, it must divide num_attention_heads, which is {heads}"
        )
    return DecoderShape(
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(config, family, hidden, heads),
        ffn=_count(config, "intermediate_size"),
        vocab=_count(config, "vocab_size"),
        ties_embeddings=_ties_embeddings(content, config),
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family == "qwen3",
    )


def _family(config: Mapping[str, Any]) -> str:
    found = config.get("model_type")
    architectures = config.get("architectures")
    if found is None and isinstance(architectures, list) and architectures:
        found = ARCHITECTURES.get(str(architectures[0]), architectures[0])
    if found is None:
        raise ModelConfigError("the key model_type is missing")
    if found not in ARCHITECTURES.values():
        supported = ", ".join(sorted(ARCHITECTURES.values()))
        raise ModelConfigError(f"model_type is {json.dumps(found)}, which is not supported; supported are {supported}")
    return str(found)


def _refuse_unsupported(config: Mapping[str, Any], family: str) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ModelConfigError(f"hidden_act is {json.dumps(config['hidden_act'])}, only silu is supported")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelConfigError(f"{key} is true: a bias on all projections is not supported")
    window = config.get("sliding_window", _MISTRAL_DEFAULT_WINDOW)
    if family == "mistral" and window is not None:
        raise ModelConfigError(
            f"sliding_window is {json.dumps(window)} ({_MISTRAL_DEFAULT_WINDOW} where it is absent, null means none): "
            "attention within a window is not supported"
        )
    if config.get("use_sliding_window"):
        raise ModelConfigError("use_sliding_window is true: attention within a window is not supported")


def _head_dim(config: Mapping[str, Any], family: str, hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None:
        return _count(config, "head_dim")
    if family == "qwen3":
        return _QWEN3_DEFAULT_HEAD_DIM
    if hidden % heads:
        raise ModelConfigError(
            f"the key head_dim is missing, and hidden_size, which is {hidden}, is no multiple of num_attention_heads, "
            f"which is {heads}"
        )
    return hidden // heads


def _ties_embeddings(content: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Decide whether the head is the embedding; the four families default to a head of their own."""
    given = [level["tie_word_embeddings"] for level in (content, config) if "tie_word_embeddings" in level]
    for value in given:
        if not isinstance(value, bool):
            raise ModelConfigError(f"tie_word_embeddings is {json.dumps(value)}, it must be true or false")
    if True in given and False in given:
        raise ModelConfigError("tie_word_embeddings differs between the configuration and its text_config")
    return True in given


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelConfigError(f"the key {key} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelConfigError(f"{key} is {json.dumps(value)}, it must be a whole number of at least 1")
    return value
