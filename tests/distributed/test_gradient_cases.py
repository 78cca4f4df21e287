"""Loss and every gradient equal the reference where users of such systems were hurt."""

import dataclasses
import random

import pytest
import torch

from infinipipe_contract.plan import Chunk
from infinipipe_contract.stages import divide_layers
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.model.config import ModelConfig
from support_executor.closeness import relative_error
from support_executor.drawn import shuffle
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, uniform, varied
from support_executor.proof import gradients_of, prove, run_plan
from support_executor.reference import TINY


def whole(*sequence_lengths: tuple[int, int]) -> Chunk:
    """A batched chunk from pairs of sequence and length."""
    return chunk(*(piece for index, length in sequence_lengths for piece in cut(index, length)))


@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 2), (2, 1), (2, 2)])
def test_sequences_of_one_token_add_nothing(groups: GroupPool, pp_size: int, sp_size: int) -> None:
    batch = make_batch([1, 1, 2, 40])
    chunks = [whole((0, 1)), whole((1, 1), (2, 2)), *map(chunk, cut(3, 39, 1))]

    prove(groups, make_plan([chunks], pp_size, batch), batch, sp_size)

    assert batch.target_token_count == 40


def test_a_batch_of_only_one_token_sequences_gives_loss_and_gradients_of_zero(groups: GroupPool) -> None:
    batch = make_batch([1, 1])

    steps = prove(groups, make_plan([[whole((0, 1)), whole((1, 1))]], 2, batch), batch, 2)

    assert {step.loss for step in steps} == {0.0}
    assert not any(gradient.any() for gradient in gradients_of(steps).values())


@pytest.mark.parametrize(("pp_size", "sp_size"), [(4, 1), (2, 2)])
@pytest.mark.parametrize("chunks", [[whole((0, 40))], list(map(chunk, cut(0, 25, 15)))], ids=["one", "two"])
def test_fewer_chunks_than_stages_from_one_sequence(
    groups: GroupPool, chunks: list[Chunk], pp_size: int, sp_size: int
) -> None:
    batch = make_batch([40])

    prove(groups, make_plan([chunks], pp_size, batch), batch, sp_size)


@pytest.mark.parametrize("chunk_count", [1, 2, 3, 4, 5, 6])
def test_gradients_do_not_depend_on_how_the_batch_is_cut(groups: GroupPool, chunk_count: int) -> None:
    batch = make_batch([13, 2, 7, 11, 5, 3])
    chunks = [
        whole(*((index, length) for index, length in enumerate(batch.lengths_tokens) if index % chunk_count == k))
        for k in range(chunk_count)
    ]

    prove(groups, make_plan([chunks], 2, batch), batch, 2)


@pytest.mark.parametrize("group_of", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 2]], ids=["1", "2", "3"])
def test_gradients_of_several_pipelines_add_up(groups: GroupPool, group_of: list[int]) -> None:
    batch = make_batch([17, 9, 12, 4])
    pieces = [list(map(chunk, cut(0, 9, 8))), [whole((1, 9))], [whole((2, 12))], [whole((3, 4))]]
    shape = [
        [one for chunks, group in zip(pieces, group_of, strict=True) if group == wanted for one in chunks]
        for wanted in range(max(group_of) + 1)
    ]

    prove(groups, make_plan(shape, 2, batch), batch, 2)


def test_a_prompt_masked_on_the_first_rank_weighs_nothing(groups: GroupPool) -> None:
    token_ids = make_batch([20]).sequences[0].token_ids
    batch = Batch((make_sequence(token_ids, torch.arange(20) >= 15),))

    prove(groups, make_plan([[whole((0, 20))]], 1, batch), batch, 2)

    assert batch.target_token_count == 5


@pytest.mark.parametrize("recompute", [0, 2])
def test_a_chunk_without_targets_takes_part_and_adds_nothing(groups: GroupPool, recompute: int) -> None:
    batch = make_batch([14, 9, 11], masked=[1])
    chunks = [*map(chunk, cut(0, 8, 6)), whole((1, 9)), whole((2, 11))]

    steps = prove(groups, make_plan([chunks], 2, batch, uniform(recompute)), batch, 2)

    assert all(torch.isfinite(torch.tensor(step.loss)) for step in steps)


@pytest.mark.parametrize("lengths", [[1, 3], [2, 1], [3, 2]], ids=str)
def test_ranks_without_tokens_take_part_in_every_collective(groups: GroupPool, lengths: list[int]) -> None:
    batch = make_batch(lengths)
    chunks = [whole((0, lengths[0])), whole((1, lengths[1]))]

    prove(groups, make_plan([chunks], 2, batch, varied(2)), batch, 4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (8, 1), (4, 4), (12, 3)])
def test_key_heads_need_not_divide_by_the_ranks(groups: GroupPool, heads: int, kv_heads: int) -> None:
    config = dataclasses.replace(TINY, heads=heads, kv_heads=kv_heads, layers=2)
    batch = make_batch([23, 9])
    first, second = cut(0, 11, 12)

    plan = make_plan([[chunk(first), chunk(second, *cut(1, 9))]], 1, batch, varied(2))
    prove(groups, plan, batch, 4, config)


@pytest.mark.parametrize(
    "lengths", [[50], [30, 20], [7, 29, 14], [20, 1, 19, 10], [2, 11, 17, 1, 19]], ids=lambda lengths: str(len(lengths))
)
def test_any_cut_of_a_sequence_gives_the_same_gradients(groups: GroupPool, lengths: list[int]) -> None:
    batch = make_batch([50])

    prove(groups, make_plan([list(map(chunk, cut(0, *lengths)))], 2, batch, varied(2)), batch, 1)


def test_five_chunks_of_different_length_cross_four_stages_in_one_message_an_edge(groups: GroupPool) -> None:
    batch = make_batch([25, 13, 8, 3, 1])
    chunks = [whole(pair) for pair in enumerate(batch.lengths_tokens)]

    steps = prove(groups, make_plan([chunks], 4, batch), batch, 1)

    # Per chunk and edge one activation and one gradient; inner stages have two edges.
    assert [step.message_count for step in steps] == [10, 20, 20, 10]


def test_shares_without_rows_send_no_message(groups: GroupPool) -> None:
    batch = make_batch([1, 9])

    steps = prove(groups, make_plan([[whole((0, 1)), whole((1, 9))]], 2, batch), batch, 2)

    assert [step.message_count for step in steps] == [4, 2, 4, 2]


@pytest.mark.parametrize("seed", range(6))
def test_any_legal_order_of_forwards_and_backwards_gives_the_same_gradients(groups: GroupPool, seed: int) -> None:
    batch = make_batch([22, 6, 9, 15])
    first, second, third = cut(0, 9, 6, 7)
    chunks = [whole((1, 6)), chunk(first), chunk(second, *cut(2, 9)), chunk(third), *map(chunk, cut(3, 8, 7))]
    plan = make_plan([chunks], 2, batch)

    prove(groups, shuffle(plan, random.Random(seed)), batch, 2)


@pytest.mark.parametrize("seed", range(3))
def test_any_legal_order_over_four_stages_ends(groups: GroupPool, seed: int) -> None:
    batch = make_batch([22, 6, 9, 15])
    first, second = cut(0, 12, 10)
    chunks = [whole((1, 6)), chunk(first), chunk(second, *cut(2, 9)), *map(chunk, cut(3, 8, 7))]
    plan = make_plan([chunks], 4, batch)

    prove(groups, shuffle(plan, random.Random(seed)), batch, 1)


def test_dropout_masks_are_the_same_in_the_recompute_whatever_runs_in_between(groups: GroupPool) -> None:
    config = dataclasses.replace(TINY, dropout=0.1)
    batch = make_batch([21, 13, 8])
    chunks = [*map(chunk, cut(0, 11, 10)), whole((1, 13)), whole((2, 8))]
    plans = [make_plan([chunks], 2, batch, uniform(count)) for count in (0, 1, 2)]

    without, some, full = (run_plan(groups, plan, batch, 2, config) for plan in plans)

    expected = gradients_of(without)
    for steps in (some, full):
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in without], rel=1e-14)
        for name, gradient in gradients_of(steps).items():
            assert relative_error(gradient, expected[name]) <= 1e-12, name


def test_dropout_changes_the_gradients(groups: GroupPool) -> None:
    batch = make_batch([21])
    plan = make_plan([[whole((0, 21))]], 1, batch)

    plain = run_plan(groups, plan, batch, 1)
    dropped = run_plan(groups, plan, batch, 1, dataclasses.replace(TINY, dropout=0.1))

    assert relative_error(gradients_of(dropped)["head.weight"], gradients_of(plain)["head.weight"]) > 1e-2


def test_bf16_stays_near_fp32_over_many_slices(groups: GroupPool) -> None:
    config = ModelConfig(layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=97)
    batch = make_batch([60, 9])
    plan = make_plan([[*map(chunk, cut(0, *[10] * 6)), whole((1, 9))]], 2, batch, varied(2))

    exact = run_plan(groups, plan, batch, 2, config, torch.float32)
    rounded = run_plan(groups, plan, batch, 2, config, torch.bfloat16)

    # The type has 8 bits; the largest deviation that many slices and layers let grow is some roundings.
    assert rounded[0].loss == pytest.approx(exact[0].loss, rel=2e-3)
    for name, gradient in gradients_of(exact).items():
        error = torch.linalg.vector_norm(gradients_of(rounded)[name] - gradient) / torch.linalg.vector_norm(gradient)
        assert error <= 3e-2, name


@pytest.mark.parametrize(("layers", "pp_size", "sp_size"), [(5, 2, 2), (3, 2, 1), (6, 4, 1), (5, 4, 2)])
def test_layers_that_do_not_divide_by_the_stages_are_all_there(
    groups: GroupPool, layers: int, pp_size: int, sp_size: int
) -> None:
    config = dataclasses.replace(TINY, layers=layers)
    batch = make_batch([30, 9, 4])
    chunks = [*map(chunk, cut(0, 18, 12)), whole((1, 9), (2, 4))]
    layer_counts = divide_layers(layers, pp_size)
    plan = make_plan([chunks], pp_size, batch, lambda stage, index: (stage + index) % (layer_counts[stage] + 1))

    prove(groups, plan, batch, sp_size, config)


@pytest.mark.parametrize(("stage_layers", "sp_size"), [((3, 1), 2), ((1, 3), 1), ((1, 2, 1, 1), 1)])
def test_layers_divided_by_hand_are_all_there(groups: GroupPool, stage_layers: tuple[int, ...], sp_size: int) -> None:
    config = dataclasses.replace(TINY, layers=sum(stage_layers))
    batch = make_batch([30, 9, 4])
    chunks = [*map(chunk, cut(0, 18, 12)), whole((1, 9), (2, 4))]
    plan = make_plan(
        [chunks], len(stage_layers), batch, lambda stage, index: (stage + index) % (stage_layers[stage] + 1)
    )

    prove(groups, plan, batch, sp_size, config, stage_layers=stage_layers)
