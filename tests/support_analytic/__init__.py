"""Configurations of known models, as their publishers wrote them, for the tests of analytic profiles."""

from typing import Any, NamedTuple


class KnownModel(NamedTuple):
    """A configuration, the parts that decide sizes, and the number of parameters that the model is known to have."""

    config: dict[str, Any]
    parameter_count: int


def _config(
    model_type: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: Any
) -> Any:
    return {
        "model_type": model_type,
        "hidden_act": "silu",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "rope_theta": 10000.0,
        **more,
    }


_QWEN3 = {"head_dim": 128, "attention_bias": False, "use_sliding_window": False, "sliding_window": None}

KNOWN_MODELS = {
    "Llama-2-7B": KnownModel(_config("llama", 32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "Llama-2-13B": KnownModel(_config("llama", 40, 5120, 40, 40, 13824, 32000), 13_015_864_320),
    "Llama-2-70B": KnownModel(_config("llama", 80, 8192, 64, 8, 28672, 32000), 68_976_648_192),
    "Llama-3-8B": KnownModel(_config("llama", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "Llama-3-70B": KnownModel(_config("llama", 80, 8192, 64, 8, 28672, 128256), 70_553_706_496),
    "Llama-3.2-1B": KnownModel(
        _config("llama", 16, 2048, 32, 8, 8192, 128256, head_dim=64, tie_word_embeddings=True), 1_235_814_400
    ),
    "Llama-3.2-3B": KnownModel(
        _config("llama", 28, 3072, 24, 8, 8192, 128256, head_dim=128, tie_word_embeddings=True), 3_212_749_824
    ),
    "Mistral-7B": KnownModel(_config("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=None), 7_241_732_096),
    "Qwen2-7B": KnownModel(
        _config("qwen2", 28, 3584, 28, 4, 18944, 152064, use_sliding_window=False, sliding_window=131072), 7_615_616_512
    ),
    "Qwen2.5-0.5B": KnownModel(_config("qwen2", 24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True), 494_032_768),
    "Qwen3-0.6B": KnownModel(
        _config("qwen3", 28, 1024, 16, 8, 3072, 151936, tie_word_embeddings=True, **_QWEN3), 596_049_920
    ),
    "Qwen3-8B": KnownModel(_config("qwen3", 36, 4096, 32, 8, 12288, 151936, **_QWEN3), 8_190_735_360),
}
