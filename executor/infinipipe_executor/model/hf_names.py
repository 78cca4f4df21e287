"""Names of parameters: ours and those of Hugging Face, one line each; and how a message lists many of them.

Shapes and contents are the same.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_OUTER: Mapping[str, str] = MappingProxyType(
    {
        "embedding.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    }
)

_OF_LAYER: Mapping[str, str] = MappingProxyType(
    {
        "attention_norm.weight": "input_layernorm.weight",
        "attention.q.weight": "self_attn.q_proj.weight",
        "attention.q.bias": "self_attn.q_proj.bias",
        "attention.k.weight": "self_attn.k_proj.weight",
        "attention.k.bias": "self_attn.k_proj.bias",
        "attention.v.weight": "self_attn.v_proj.weight",
        "attention.v.bias": "self_attn.v_proj.bias",
        "attention.q_norm.weight": "self_attn.q_norm.weight",
        "attention.k_norm.weight": "self_attn.k_norm.weight",
        "attention.output.weight": "self_attn.o_proj.weight",
        "mlp_norm.weight": "post_attention_layernorm.weight",
        "mlp.gate.weight": "mlp.gate_proj.weight",
        "mlp.up.weight": "mlp.up_proj.weight",
        "mlp.down.weight": "mlp.down_proj.weight",
    }
)

# Constants that old Llama checkpoints carry with every layer; they follow from the configuration.
_CONSTANT = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

HEAD = "lm_head.weight"

# Of many names, a message shows so many.
SHOWN_NAMES = 4


def to_hf(name: str) -> str:
    """Translate a parameter's name.

    Args:
        name: Name in our whole model, such as ``layers.3.attention.q.weight``.

    Returns:
        Name in a Hugging Face checkpoint, such as ``model.layers.3.self_attn.q_proj.weight``.
    """
    if name in _OUTER:
        return _OUTER[name]
    _, index, rest = name.split(".", 2)
    return f"model.layers.{index}.{_OF_LAYER[rest]}"


def is_constant(hf_name: str) -> bool:
    """Tell whether a tensor of a checkpoint is no parameter but a constant that follows from the configuration."""
    return _CONSTANT.fullmatch(hf_name) is not None


def shorten(names: Sequence[str]) -> str:
    """List names for a message: the first few, and how many more there are."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"
