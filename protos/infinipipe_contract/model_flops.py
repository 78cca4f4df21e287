"""Operations of a decoder: what a token costs in a layer and in the head, where nobody has measured it.

Matrix products and attention only, forward and backward together; the rest waits for memory and is small beside them.
"""

from collections.abc import Iterable

from infinipipe_contract.model_memory import DecoderShape

_MATMUL_PASSES = 3.0
"""Forward, the gradient of the input and that of the weights."""

_ATTENTION_PASSES = 3.5
"""Two products over the pairs forward, five backward, which computes the scores again."""


def mean_attended_tokens(lengths_tokens: Iterable[int]) -> float:
    """Mean number of tokens that a token attends to: half of its sequence, so ``sum(n^2) / (2 * sum(n))``.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1; at least one sequence.
    """
    tokens = pairs = 0
    for length in lengths_tokens:
        tokens += length
        pairs += length * length
    return pairs / (2 * tokens)


def layer_flops(shape: DecoderShape, attended_tokens: float) -> float:
    """Operations of one token in one layer, forward and backward, at a mean number of attended tokens."""
    matrices = 2 * shape.layer_matrix_count
    attention = 4 * shape.query_dim * attended_tokens  # scores and weighted values
    return _MATMUL_PASSES * matrices + _ATTENTION_PASSES * attention


def head_flops(shape: DecoderShape) -> float:
    """Operations of one token in the projection to the vocabulary, forward and backward."""
    return _MATMUL_PASSES * 2 * shape.vocab * shape.hidden


def useful_flops(shape: DecoderShape, lengths_tokens: Iterable[int]) -> float:
    """Operations that training on whole sequences needs, forward and backward, however they are packed or sliced.

    A token attends to the tokens before it in its own sequence: attention counts half the square of every length, never
    the square of a pack. What is computed a second time counts as nothing: recomputed layers, and the scores that the
    backward pass of attention computes again. Where the backward pass asks for gradients twice, of inputs and of
    weights, both count.

    Args:
        shape: The model.
        lengths_tokens: Tokens of every sequence.
    """
    tokens = pairs = 0.0
    for length in lengths_tokens:
        tokens += length
        pairs += length * length / 2
    matrices = 2 * (shape.layers * shape.layer_matrix_count + shape.vocab * shape.hidden) * tokens
    attention = 4 * shape.query_dim * shape.layers * pairs
    return _MATMUL_PASSES * (matrices + attention)


def head_layers(shape: DecoderShape, attended_tokens: float) -> float:
    """Time of the head in layers, as far as operations tell; see ``divide_layers_by_cost``."""
    return head_flops(shape) / layer_flops(shape, attended_tokens)
