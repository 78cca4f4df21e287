"""What autograd really saves equals the formulas of the memory model."""

import dataclasses

import pytest
import torch

from infinipipe_contract.model_memory import logits_bytes, model_state_bytes, parameter_count, token_bytes
from infinipipe_contract.plan import Chunk
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.pipeline.saved_bytes import SavedBytes
from support_executor.plans import chunk, cut, make_batch
from support_executor.reference import FAMILIES, TINY, parameter_shapes
from support_executor.single import chunk_passes, plain_stage

SEVEN_B = ModelConfig(layers=2, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32000)


def saved_bytes(stage: Stage, chunks: list[Chunk], *, recompute_layer_count: int = 0, device: str = "cpu") -> int:
    """Bytes held after the forward passes of all chunks, without those of the stage's own input."""
    lengths: dict[int, int] = {}
    for one in chunks:
        for piece in one.slices:
            lengths[piece.sequence_index] = max(lengths.get(piece.sequence_index, 0), piece.end_token)
    batch = make_batch([lengths[index] for index in sorted(lengths)])
    passes = chunk_passes(stage, chunks, batch, recompute_layer_count=recompute_layer_count, device=device)
    meter, outputs = SavedBytes(), []
    for chunk_pass in passes:
        x = torch.empty(chunk_pass.layout.own_token_count, stage.config.hidden, dtype=stage.dtype, device=device)
        with meter:
            outputs.append(stage(x.normal_().requires_grad_(), chunk_pass))
    held = meter.live_bytes
    del outputs
    assert meter.live_bytes == 0
    return held


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_layers_save_what_the_formula_says(dropout: float, dtype: torch.dtype) -> None:
    config = dataclasses.replace(TINY, dropout=dropout)
    stage = plain_stage(config, 2, 0, dtype)
    stage.embedding = None

    saved = saved_bytes(stage, [chunk(*cut(0, 30), *cut(1, 7))])

    assert saved == 37 * token_bytes(config.shape, dtype.itemsize) / 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stage_index", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_and_head_of_every_family_save_what_the_formula_says(
    family: str, stage_index: int, dtype: torch.dtype
) -> None:
    config = FAMILIES[family]
    stage = plain_stage(config, 2, stage_index, dtype)
    if stage_index == 0:
        stage.embedding = None

    saved = saved_bytes(stage, [chunk(*cut(0, 30), *cut(1, 7))])

    behind_layers = logits_bytes(config.shape, dtype.itemsize) if stage_index == 1 else 0
    assert saved == 37 * (token_bytes(config.shape, dtype.itemsize) / 2 + behind_layers)


@pytest.mark.parametrize("pp_size", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_parameters_that_the_formula_counts_on_every_stage(family: str, pp_size: int) -> None:
    config = FAMILIES[family]
    stages = [plain_stage(config, pp_size, index) for index in range(pp_size)]

    for index, stage in enumerate(stages):
        assert parameter_count(config.shape, pp_size, index) == sum(p.numel() for p in stage.parameters())
    assert {name for stage in stages for name, _ in stage.named_parameters()} == set(parameter_shapes(config))


def test_layers_of_a_7b_model_save_what_the_formula_says() -> None:
    with torch.device("meta"):
        stage = Stage(dataclasses.replace(SEVEN_B, layers=4), 2, 0, torch.bfloat16).bfloat16()
    stage.embedding = None

    saved = saved_bytes(stage, [chunk(*cut(0, 1024))], device="meta")

    # 8 x 4096 and 3 x 11008 elements of 2 bytes, 32 + 2 statistics of 4 bytes
    assert saved / 1024 == token_bytes(SEVEN_B.shape, 2) == 2 * (2 * (8 * 4096 + 3 * 11008) + 4 * 34)


def test_saved_bytes_do_not_depend_on_the_number_of_slices() -> None:
    stage = plain_stage(TINY, 2, 0)
    stage.embedding = None

    held = {saved_bytes(stage, list(map(chunk, cut(0, *[48 // count] * count)))) for count in (1, 4, 8, 16)}

    assert held == {48 * token_bytes(TINY.shape, 8) / 2}


@pytest.mark.parametrize("recompute_layer_count", [0, 1, 2])
def test_a_recomputed_layer_keeps_its_input_only(recompute_layer_count: int) -> None:
    stage = plain_stage(TINY, 2, 0)
    stage.embedding = None

    saved = saved_bytes(stage, [chunk(*cut(0, 29))], recompute_layer_count=recompute_layer_count)

    layer_bytes, input_bytes = token_bytes(TINY.shape, 8) / TINY.layers, 8 * TINY.hidden
    # Where everything is recomputed, the output of the stage is saved by nobody.
    assert saved == 29 * (recompute_layer_count * input_bytes + (2 - recompute_layer_count) * layer_bytes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_last_stage_saves_the_logits_once(dtype: torch.dtype) -> None:
    stage = plain_stage(TINY, 2, 1, dtype)

    saved = saved_bytes(stage, [chunk(*cut(0, 30))])

    assert saved == 30 * (token_bytes(TINY.shape, dtype.itemsize) / 2 + logits_bytes(TINY.shape, dtype.itemsize))


def test_behind_a_large_vocabulary_the_last_stage_saves_less_than_logits_in_fp32() -> None:
    stage = plain_stage(dataclasses.replace(TINY, vocab=8000), 4, 3, torch.bfloat16)

    assert saved_bytes(stage, [chunk(*cut(0, 30))]) < 30 * 8000 * 4


def test_key_heads_fewer_than_ranks_are_counted_as_replicated() -> None:
    shape = dataclasses.replace(TINY.shape, heads=8, kv_heads=2)

    # Over two ranks the output of attention is held twice; over four, two key heads become four.
    assert token_bytes(shape, 2, 2) - token_bytes(shape, 2, 1) == shape.layers * 2 * shape.query_dim
    assert token_bytes(shape, 2, 4) - token_bytes(shape, 2, 2) == shape.layers * 2 * 2 * 2 * shape.head_dim


@pytest.mark.parametrize("pp_size", [1, 2, 4])
def test_every_parameter_belongs_to_one_stage(pp_size: int) -> None:
    stages = [plain_stage(TINY, pp_size, index) for index in range(pp_size)]

    names = [name for stage in stages for name, _ in stage.named_parameters()]

    assert sorted(names) == sorted(parameter_shapes(TINY))
    for index, stage in enumerate(stages):
        assert parameter_count(TINY.shape, pp_size, index) == sum(p.numel() for p in stage.parameters())


def test_whole_gradients_are_not_divided_among_the_ranks() -> None:
    states = [model_state_bytes(TINY.shape, 2, sp_size, 1, shards_gradients=False) for sp_size in (1, 4)]

    parameter_bytes = 4 * parameter_count(TINY.shape, 2, 1)
    assert states == [4 * parameter_bytes, (3 / 4 + 1) * parameter_bytes]


def test_model_state_is_parameters_gradients_and_two_moments_divided_among_the_ranks() -> None:
    assert model_state_bytes(TINY.shape, 2, 4, 1) == 4 * 4 * parameter_count(TINY.shape, 2, 1) / 4
