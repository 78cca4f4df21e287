"""Parameters and bytes of decoders: what biases, norms, tied embeddings and stages change."""

import dataclasses

import pytest

from infinipipe_contract.model_memory import (
    DecoderShape,
    gathered_bytes,
    held_kv_dim,
    logits_bytes,
    parameter_count,
    token_bytes,
)

SHAPE = DecoderShape(layers=4, hidden=48, heads=8, kv_heads=2, head_dim=16, ffn=96, vocab=500)
EMBEDDING = 500 * 48


def test_a_head_dim_that_is_no_share_of_the_hidden_size_counts_by_itself() -> None:
    # q and o are 48 x 128, k and v 48 x 32; gate, up and down 48 x 96; two norms
    assert SHAPE.layer_parameter_count == 2 * 48 * 128 + 2 * 48 * 32 + 3 * 48 * 96 + 2 * 48


def test_biases_and_norms_of_queries_and_keys_are_parameters_too() -> None:
    plain = SHAPE.layer_parameter_count

    assert dataclasses.replace(SHAPE, has_qkv_bias=True).layer_parameter_count == plain + 128 + 32 + 32
    assert dataclasses.replace(SHAPE, has_qk_norm=True).layer_parameter_count == plain + 16 + 16


@pytest.mark.parametrize("pp_size", [2, 4])
def test_stages_hold_the_model_once(pp_size: int) -> None:
    assert sum(parameter_count(SHAPE, pp_size, p) for p in range(pp_size)) == parameter_count(SHAPE)


@pytest.mark.parametrize("pp_size", [2, 4])
def test_a_tied_embedding_is_held_once_by_one_stage_and_twice_by_several(pp_size: int) -> None:
    tied = dataclasses.replace(SHAPE, ties_embeddings=True)

    assert parameter_count(tied) == parameter_count(SHAPE) - EMBEDDING
    assert sum(parameter_count(tied, pp_size, p) for p in range(pp_size)) == parameter_count(tied) + EMBEDDING


@pytest.mark.parametrize(("sp_size", "expected"), [(1, 32), (2, 32), (4, 64), (8, 128)])
def test_key_heads_are_replicated_where_they_are_fewer_than_ranks(sp_size: int, expected: int) -> None:
    assert held_kv_dim(SHAPE, sp_size) == expected


def test_a_norm_on_queries_and_keys_saves_its_input_and_a_statistic_of_every_head() -> None:
    normed = dataclasses.replace(SHAPE, has_qk_norm=True)

    assert token_bytes(normed, 2) - token_bytes(SHAPE, 2) == 4 * (2 * (128 + 32) + 4 * (8 + 2))


def test_a_bias_saves_nothing() -> None:
    assert token_bytes(dataclasses.replace(SHAPE, has_qkv_bias=True), 2) == token_bytes(SHAPE, 2)


def test_logits_are_held_with_the_input_and_output_of_the_final_norm() -> None:
    assert logits_bytes(SHAPE, 2) == 2 * (500 + 2 * 48) + 4


def test_two_layers_and_the_gradients_of_one_are_held_undivided_with_what_lies_outside_the_layers() -> None:
    layer = SHAPE.layer_parameter_count

    assert gathered_bytes(SHAPE, 2, 0, 2) == 2 * (EMBEDDING + 3 * layer)
    assert gathered_bytes(SHAPE, 2, 1, 2) == 2 * (EMBEDDING + 48 + 3 * layer)
    assert gathered_bytes(dataclasses.replace(SHAPE, layers=8), 4, 1, 2) == 2 * 3 * layer
    # A stage of one layer has no next one.
    assert gathered_bytes(SHAPE, 4, 1, 2) == 2 * 2 * layer
