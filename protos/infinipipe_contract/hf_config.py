"""Reads the ``config.json`` of a Hugging Face model: everything is taken from it, and nothing that matters is assumed.

Where a key may be absent, the model's own default is taken; what the executor cannot run is refused. Entry point:
``read_hf_config``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_keys import read_count, read_number
from infinipipe_contract.json_text import JsonTextError, parse_json
from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.rope import Rope, read_rope

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
_DEFAULT_WINDOW_TOKENS = 4096
_DEFAULT_NORM_EPS = 1e-6
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class HfConfig:
    """What a configuration says about a model.

    Attributes:
        family: ``llama``, ``mistral``, ``qwen2`` or ``qwen3``.
        shape: Sizes.
        norm_eps: Added to the mean square in RMSNorm.
        rope: Rotary positions.
        window_tokens: Tokens that a token attends to, itself among them; None for all before it.
        trained_tokens: Longest sequence that the model was made for (``max_position_embeddings``); None if not said.
        is_part: Whether the sizes lie in a ``text_config``: the decoder is one part of several.
    """

    family: str
    shape: DecoderShape
    norm_eps: float
    rope: Rope
    window_tokens: int | None
    trained_tokens: int | None
    is_part: bool


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        ModelConfigError: If it cannot be read or is none; names the file.
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
        raise ModelConfigError(f"{path}: it must hold a JSON object, found {type(content).__name__}")
    return content


def read_hf_config(path: Path, longest_tokens: int | None = None) -> HfConfig:
    """Read a configuration.

    Args:
        path: The model's ``config.json``.
        longest_tokens: Tokens of the longest sequence, which attention within a window must hold; None if nobody knows.

    Raises:
        ModelConfigError: If it cannot be read, lacks a key or describes a model that is not supported; names the file.
    """
    content = read_json_object(path)
    try:
        config = parse_hf_config(content)
        _check_window(config, longest_tokens)
        return config
    except ModelConfigError as error:
        raise ModelConfigError(f"{path}: {error}") from None


def parse_hf_config(content: Mapping[str, Any]) -> HfConfig:
    """Understand a configuration; that of a decoder that is one part of several lies in the ``text_config``.

    Raises:
        ModelConfigError: If a key is missing or describes a model that is not supported.
    """
    config = content.get("text_config", content)
    if not isinstance(config, Mapping):
        raise ModelConfigError(f"text_config is {json.dumps(config)}, it must be an object")
    family = _family(config)
    _refuse_unsupported(config, content)
    return HfConfig(
        family=family,
        shape=_shape(content, config, family),
        norm_eps=read_number(config, "rms_norm_eps", _DEFAULT_NORM_EPS),
        rope=read_rope(config),
        window_tokens=_window_tokens(config, family),
        trained_tokens=read_count(config, "max_position_embeddings") if "max_position_embeddings" in config else None,
        is_part="text_config" in content,
    )


def _check_window(config: HfConfig, longest_tokens: int | None) -> None:
    """Refuse attention within a window, unless no sequence is longer than the window."""
    if config.window_tokens is None or (longest_tokens is not None and longest_tokens <= config.window_tokens):
        return
    sequences = "sequences may be longer" if longest_tokens is None else f"sequences have up to {longest_tokens} tokens"
    raise ModelConfigError(
        f"sliding_window is {config.window_tokens} (null means none; {_DEFAULT_WINDOW_TOKENS} where the key is absent) "
        f"and {sequences}: attention within a window is not supported"
    )


def _shape(content: Mapping[str, Any], config: Mapping[str, Any], family: str) -> DecoderShape:
    hidden, heads = read_count(config, "hidden_size"), read_count(config, "num_attention_heads")
    kv_heads = read_count(config, "num_key_value_heads", default=heads if family == "llama" else None)
    if heads % kv_heads:
        raise ModelConfigError(
            f"num_key_value_heads is {kv_heads}, it must divide num_attention_heads, which is {heads}"
        )
    return DecoderShape(
        layers=read_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(config, family, hidden, heads),
        ffn=read_count(config, "intermediate_size"),
        vocab=read_count(config, "vocab_size"),
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


def _refuse_unsupported(config: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ModelConfigError(f"hidden_act is {json.dumps(config['hidden_act'])}, only silu is supported")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelConfigError(f"{key} is true: a bias on all projections is not supported")
    if config.get("attention_dropout"):
        raise ModelConfigError(
            f"attention_dropout is {json.dumps(config['attention_dropout'])}: dropout within attention is not supported"
        )
    if (content.get("quantization_config") or config.get("quantization_config")) is not None:
        raise ModelConfigError("quantization_config is given: quantised weights are not supported")
    layer_types = config.get("layer_types")
    for found in layer_types if isinstance(layer_types, list) else ():
        if found not in _LAYER_TYPES:
            raise ModelConfigError(f"layer_types has {json.dumps(found)}, supported are {', '.join(_LAYER_TYPES)}")


def _window_tokens(config: Mapping[str, Any], family: str) -> int | None:
    """Tell the window: Mistral has one unless it says null, Qwen only where it is switched on, Llama never."""
    if family == "llama" or (family != "mistral" and not config.get("use_sliding_window")):
        return None
    if config.get("sliding_window", _DEFAULT_WINDOW_TOKENS) is None:
        return None
    return read_count(config, "sliding_window", _DEFAULT_WINDOW_TOKENS)


def _head_dim(config: Mapping[str, Any], family: str, hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None:
        return read_count(config, "head_dim")
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
