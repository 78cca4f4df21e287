"""Parameters of a decoder, and the bytes that it and its backward pass hold: M_token, M_logits and M_ms of the paper.

Every operator of the executor is written so that it saves exactly what is counted here; the planner predicts with the
same formulas for models that nobody has run yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.stages import divide_layers


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What decides how many parameters a Llama-like decoder has and what it saves.

    Attributes:
        layers: Transformer layers over all stages.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key/value heads; divides ``heads``.
        head_dim: Width of one head; ``heads * head_dim`` need not be ``hidden``.
        ffn: Width of the feed-forward layer.
        vocab: Entries of the vocabulary.
        ties_embeddings: Whether the head is the embedding.
        has_qkv_bias: Whether the query, key and value projections add a bias.
        has_qk_norm: Whether every query and key head goes through an RMSNorm.
        dropout: Probability of dropping an element of either residual branch, in [0, 1).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    ties_embeddings: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    dropout: float = 0.0

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together (paper: D_kv)."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrix_count(self) -> int:
        """Parameters of the matrices of one layer: four projections of attention, three of the feed-forward layer."""
        return self.hidden * (2 * self.query_dim + 2 * self.kv_dim) + 3 * self.hidden * self.ffn

    @property
    def layer_parameter_count(self) -> int:
        """Parameters of one layer, with its norms and biases."""
        count = self.layer_matrix_count + 2 * self.hidden
        if self.has_qkv_bias:
            count += self.query_dim + 2 * self.kv_dim
        if self.has_qk_norm:
            count += 2 * self.head_dim
        return count


def held_kv_dim(shape: DecoderShape, sp_size: int) -> int:
    """Width of the key heads that the ranks of a stage hold together: heads fewer than ranks are replicated."""
    return math.lcm(shape.kv_heads, sp_size) * shape.head_dim


def token_bytes(shape: DecoderShape, dtype_bytes: int, sp_size: int = 1) -> float:
    """Activation bytes that one token saves over all layers (paper, Eq. 5: M_token).

    A layer saves, per token: its input, both normalised inputs and the middle of the residual stream; queries, keys,
    values and the output of attention; gate, up and their product; with a norm on queries and keys also what goes into
    it. Where heads are divided among ranks, the output of attention is held twice (by heads for attention, by tokens
    for the projection behind it), and keys and values are replicated if there are fewer heads than ranks. Row
    statistics are held in at least 4 bytes. The rotary table, one for all layers of a stage, is left out.

    Args:
        shape: Sizes of the model.
        dtype_bytes: Bytes of one activation element.
        sp_size: Ranks of one stage.

    Returns:
        Bytes, not divided among devices.
    """
    statistic_bytes = max(4, dtype_bytes)
    attention_outputs = 1 if sp_size == 1 else 2
    elements = (
        4 * shape.hidden + (1 + attention_outputs) * shape.query_dim + 2 * held_kv_dim(shape, sp_size) + 3 * shape.ffn
    )
    statistics = shape.heads + 2  # log-sum-exp of every head, inverse norm of either RMSNorm
    if shape.has_qk_norm:
        elements += shape.query_dim + shape.kv_dim
        statistics += shape.heads + shape.kv_heads
    dropout_bytes = 2 * shape.hidden if shape.dropout > 0 else 0
    return shape.layers * (dtype_bytes * elements + statistic_bytes * statistics + dropout_bytes)


def logits_bytes(shape: DecoderShape, dtype_bytes: int) -> float:
    """Bytes that one token saves behind the last layer (paper, Eq. 6: M_logits).

    Logits, whose gradient is written over them, and the final norm's input and output.
    """
    return dtype_bytes * (shape.vocab + 2 * shape.hidden) + max(4, dtype_bytes)


def parameter_count(
    shape: DecoderShape, pp_size: int = 1, stage_index: int = 0, *, stage_layers: Sequence[int] | None = None
) -> int:
    """Parameters of one stage; the first holds the embedding, the last the final norm and the head.

    A head that is the embedding is held by both stages where they are two. One stage holds the whole model.

    Args:
        shape: Sizes of the model.
        pp_size: Stages.
        stage_index: 0-based stage.
        stage_layers: Layers of every stage; None divides them evenly. So for all functions below.
    """
    layers = (stage_layers or divide_layers(shape.layers, pp_size))[stage_index]
    return layers * shape.layer_parameter_count + _outer_parameter_count(shape, pp_size, stage_index)


def model_state_bytes(
    shape: DecoderShape,
    pp_size: int,
    sp_size: int,
    stage_index: int,
    param_bytes: int = 4,
    *,
    shards_gradients: bool = True,
    stage_layers: Sequence[int] | None = None,
) -> float:
    """Parameters, gradients and both AdamW moments of one device of a stage (paper, Eq. 6: M_ms(p)).

    Args:
        shape: Sizes of the model.
        pp_size: Stages.
        sp_size: Ranks of one stage, among which the state is divided.
        stage_index: 0-based stage.
        param_bytes: Bytes of one element of the state.
        shards_gradients: Whether gradients are divided among the ranks after every chunk (ZeRO-3); else every rank adds
            up those of the whole stage until the step's last backward pass divides them.
        stage_layers: Layers of every stage.

    Returns:
        Bytes of one device.
    """
    parameters = parameter_count(shape, pp_size, stage_index, stage_layers=stage_layers)
    gradients = parameters / sp_size if shards_gradients else parameters
    return param_bytes * (3 * parameters / sp_size + gradients)


def most_stage_layers(
    shape: DecoderShape, pp_size: int, sp_size: int, usable_bytes: float, *, shards_gradients: bool = True
) -> tuple[int, ...]:
    """Most layers of every stage whose model states fit in memory, at least 1; activations are not counted.

    How many bytes activations take is for plans to decide, which can recompute them.
    """
    limits = []
    for stage in range(pp_size):
        outer_bytes, one_layer_bytes = (
            model_state_bytes(
                shape,
                pp_size,
                sp_size,
                stage,
                shards_gradients=shards_gradients,
                stage_layers=(count,) * pp_size,
            )
            for count in (0, 1)
        )
        layer_bytes = one_layer_bytes - outer_bytes
        limits.append(min(max(1, int((usable_bytes - outer_bytes) / layer_bytes)), shape.layers))
    return tuple(limits)


def gathered_bytes(
    shape: DecoderShape,
    pp_size: int,
    stage_index: int,
    dtype_bytes: int,
    *,
    stage_layers: Sequence[int] | None = None,
) -> float:
    """Most bytes that ZeRO-3 holds undivided on every device of a stage at once, beside ``model_state_bytes``.

    What lies outside the layers stays gathered throughout a pass; of the layers, the one at work and the next one are
    gathered, and the gradients of one wait to be reduced.
    """
    held_layers = min(2, (stage_layers or divide_layers(shape.layers, pp_size))[stage_index]) + 1
    outer = _outer_parameter_count(shape, pp_size, stage_index)
    return dtype_bytes * (outer + held_layers * shape.layer_parameter_count)


def _outer_parameter_count(shape: DecoderShape, pp_size: int, stage_index: int) -> int:
    is_first, is_last = stage_index == 0, stage_index == pp_size - 1
    embedding = shape.vocab * shape.hidden
    count = embedding if is_first else 0
    if is_last:
        holds_head_already = is_first and shape.ties_embeddings
        count += shape.hidden + (0 if holds_head_already else embedding)
    return count
