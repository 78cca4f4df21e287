"""What a token costs in a layer and in the head, by operations."""

import pytest

from infinipipe_contract.model_flops import head_flops, head_layers, layer_flops, mean_attended_tokens
from infinipipe_contract.model_memory import DecoderShape

SHAPE = DecoderShape(layers=4, hidden=8, heads=2, kv_heads=1, head_dim=6, ffn=16, vocab=100)


def test_a_token_attends_to_half_of_its_sequence_and_long_sequences_hold_most_tokens() -> None:
    assert mean_attended_tokens([10]) == 5
    assert mean_attended_tokens([10, 30]) == pytest.approx((10 * 5 + 30 * 15) / 40)


def test_operations_are_those_of_the_matrices_and_of_the_attended_tokens() -> None:
    # q and o are 8 x 12, k and v 8 x 6, three matrices of 8 x 16; 2 operations an element, three passes
    matrices = 3 * 2 * (2 * 96 + 2 * 48 + 3 * 128)

    assert layer_flops(SHAPE, 0) == matrices
    # 2 products of 12 elements with every attended token forward, 5 backward
    assert layer_flops(SHAPE, 50) - matrices == 7 * 2 * 12 * 50
    assert head_flops(SHAPE) == 3 * 2 * 8 * 100


def test_the_longer_the_sequences_the_fewer_layers_the_head_weighs() -> None:
    assert head_layers(SHAPE, 0) == pytest.approx(800 / 672)
    assert head_layers(SHAPE, 1000) < 0.1
