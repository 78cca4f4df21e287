"""Bytes that the model saves for its backward pass, and of its state: M_token, M_logits and M_ms of the paper.

Every operator of a layer is written so that it saves exactly what is counted here.
"""

import math

from infinipipe_executor.model.config import ModelConfig


def token_bytes(config: ModelConfig, dtype_bytes: int, sp_size: int = 1) -> float:
    """Activation bytes that one token saves over all layers (paper, Eq. 5: M_token).

    A layer saves, per token: its input, both normalised inputs and the middle of the residual stream; queries, keys,
    values and the output of attention; gate, up and their product. Where heads are divided among ranks, the output of
    attention is held twice (by heads for attention, by tokens for the projection behind it), and keys and values are
    replicated if there are fewer heads than ranks. Row statistics are held in at least 4 bytes. The rotary table, one
    for all layers of a stage, is left out.

    Args:
        config: Sizes of the model.
        dtype_bytes: Bytes of one activation element.
        sp_size: Ranks of one stage.

    Returns:
        Bytes, not divided among devices.
    """
    statistic_bytes = max(4, dtype_bytes)
    kv_dim = math.lcm(config.kv_heads, sp_size) * config.head_dim
    attention_outputs = 1 if sp_size == 1 else 2
    elements = 4 * config.hidden + (1 + attention_outputs) * config.query_dim + 2 * kv_dim + 3 * config.ffn
    statistics = config.heads + 2  # log-sum-exp of every head, inverse norm of either RMSNorm
    dropout_bytes = 2 * config.hidden if config.dropout > 0 else 0
    return config.layers * (dtype_bytes * elements + statistic_bytes * statistics + dropout_bytes)


def logits_bytes(config: ModelConfig, dtype_bytes: int) -> float:
    """Bytes that one token saves behind the last layer (paper, Eq. 6: M_logits).

    Logits, whose gradient is written over them, and the final norm's input and output.
    """
    return dtype_bytes * (config.vocab + 2 * config.hidden) + max(4, dtype_bytes)


def parameter_count(config: ModelConfig, pp_size: int, stage_index: int) -> int:
    """Parameters of one stage; the first holds the embedding, the last the final norm and the head."""
    attention = config.hidden * (2 * config.query_dim + 2 * config.kv_dim)
    layer = attention + 3 * config.hidden * config.ffn + 2 * config.hidden
    count = config.layers // pp_size * layer
    if stage_index == 0:
        count += config.vocab * config.hidden
    if stage_index == pp_size - 1:
        count += config.hidden + config.vocab * config.hidden
    return count


def model_state_bytes(config: ModelConfig, pp_size: int, sp_size: int, stage_index: int, param_bytes: int = 4) -> float:
    """Parameters, gradients and both AdamW moments of one device of a stage under ZeRO-3 (paper, Eq. 6: M_ms(p)).

    Args:
        config: Sizes of the model.
        pp_size: Stages.
        sp_size: Ranks of one stage, among which the state is divided.
        stage_index: 0-based stage.
        param_bytes: Bytes of one element of the state.

    Returns:
        Bytes of one device.
    """
    return 4 * param_bytes * parameter_count(config, pp_size, stage_index) / sp_size
