"""Useful operations are those of whole sequences, worked out by hand for a small model."""

import pytest

from infinipipe_contract.model_flops import useful_flops
from infinipipe_contract.model_memory import DecoderShape

# Matrices of a layer: q 8x8, k and v 8x4 each, output 8x8, gate, up and down 8x16 each: 64 + 64 + 64 + 384 = 576.
# Head: 10x8 = 80. Weights that multiply every token: 2 * 576 + 80 = 1232.
SHAPE = DecoderShape(
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=2,
    ffn=16,
    vocab=10,
    ties_embeddings=False,
    has_qkv_bias=False,
    has_qk_norm=False,
    dropout=0.0,
)
TOKEN = 6 * 1232  # two operations a weight forward, four backward


def attention(squares: int) -> int:
    """Forward two products of 2 operations over half the pairs of 8 elements in 2 layers; backward twice that."""
    return 3 * 2 * 2 * squares // 2 * 8 * 2


def test_every_token_costs_six_operations_a_weight_and_attention_half_the_square_of_its_sequence() -> None:
    assert useful_flops(SHAPE, [10]) == 10 * TOKEN + attention(100) == 73_920 + 9_600


def test_a_pack_costs_the_sum_of_the_squares_and_not_the_square_of_the_sum() -> None:
    assert useful_flops(SHAPE, [6, 4]) == 10 * TOKEN + attention(36 + 16)
    assert useful_flops(SHAPE, [6, 4]) == useful_flops(SHAPE, [6]) + useful_flops(SHAPE, [4])
    assert useful_flops(SHAPE, [6, 4]) < useful_flops(SHAPE, [10])


def test_nothing_costs_nothing() -> None:
    assert useful_flops(SHAPE, []) == pytest.approx(0.0)
