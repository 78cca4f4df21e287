"""Random small checkpoints, made by transformers: they stand for real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

CONTEXT_TOKENS = 64

_SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": CONTEXT_TOKENS,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS: dict[str, Callable[..., Any]] = {
    "llama 2": lambda **more: transformers.LlamaConfig(**_SIZES | more),
    "llama 3, tied": lambda **more: transformers.LlamaConfig(
        **_SIZES | more, rope_parameters=_LLAMA3, tie_word_embeddings=True
    ),
    "qwen 2": lambda **more: transformers.Qwen2Config(**_SIZES | more),
    "qwen 2, tied": lambda **more: transformers.Qwen2Config(**_SIZES | more, tie_word_embeddings=True),
    "qwen 3": lambda **more: transformers.Qwen3Config(**_SIZES | more, head_dim=16),
    "qwen 3, tied": lambda **more: transformers.Qwen3Config(**_SIZES | more, head_dim=16, tie_word_embeddings=True),
    "mistral": lambda **more: transformers.MistralConfig(
        **_SIZES | more, sliding_window=CONTEXT_TOKENS, rms_norm_eps=1e-5
    ),
}


def save_random_model(name: str, folder: Path, *, shard_size: str = "5GB", **sizes: int) -> Any:
    """Save a model none of whose parameters has a value that stands for nothing, such as 0 or 1; return it."""
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(MODELS[name](**sizes))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = 1.0 if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.empty_like(parameter).normal_(centre, 0.2, generator=generator))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model.eval()


def hf_logits(model: Any, sequences: list[Tensor]) -> Tensor:
    """Run sequences one at a time; return the logits of all their tokens, one sequence after the other."""
    with torch.no_grad():
        return torch.cat([model(token_ids[None]).logits[0] for token_ids in sequences])
