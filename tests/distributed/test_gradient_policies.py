"""When gradients are divided among the ranks of a stage: after every chunk (zero3), or once a step (zero2)."""

import pytest
import torch

from infinipipe_contract.model_memory import logits_bytes, parameter_count, token_bytes
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, uniform, varied
from support_executor.proof import gradients_of, prove, run_plan
from support_executor.ranks import SEED, count_collectives, train_steps
from support_executor.reference import TINY, reference_training

FP64_BYTES = 8
LENGTHS_TOKENS = [31, 12, 1, 8]
CHUNKS = [chunk(cut(0, 15, 16)[0]), chunk(cut(0, 15, 16)[1], *cut(2, 1), *cut(3, 8)), *map(chunk, cut(1, 5, 7))]


@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (1, 2), (2, 2)])
def test_gradients_divided_once_a_step_equal_one_sequence_at_a_time(
    groups: GroupPool, pp_size: int, sp_size: int, recompute: int
) -> None:
    batch = make_batch(LENGTHS_TOKENS)
    plan = make_plan([CHUNKS], pp_size, batch, uniform(recompute))

    prove(groups, plan, batch, sp_size, shards_gradients=False)


def test_thirty_steps_with_gradients_divided_once_each_train_as_one_process_does(groups: GroupPool) -> None:
    batch = make_batch([11, 4, 6])
    plan = make_plan([[*map(chunk, cut(0, 6, 5)), chunk(*cut(1, 4))], [chunk(*cut(2, 6))]], 2, batch, varied(1))

    ranks = groups.run(4, train_steps, TINY, 2, 2, plan, batch, 30, False)

    expected = reference_training(TINY, SEED, batch, 30)
    for steps in ranks:
        assert steps == [pytest.approx(one, rel=1e-9) for one in expected]


def test_ranks_without_tokens_take_part_when_gradients_are_divided_once_a_step(groups: GroupPool) -> None:
    batch = make_batch([1, 3])

    plan = make_plan([[chunk(*cut(0, 1)), chunk(*cut(1, 3))]], 2, batch, varied(2))
    prove(groups, plan, batch, 2, shards_gradients=False)


@pytest.mark.parametrize("shards_gradients", [True, False], ids=["zero3", "zero2"])
@pytest.mark.parametrize("chunk_count", [1, 2, 5])
def test_gradients_are_divided_once_a_chunk_or_once_a_step(
    groups: GroupPool, chunk_count: int, shards_gradients: bool
) -> None:
    batch = make_batch([6] * chunk_count)
    plan = make_plan([[chunk(*cut(index, 6)) for index in range(chunk_count)]], 2, batch)

    counts = groups.run(4, count_collectives, TINY, 1, 2, 2, plan, batch, shards_gradients)

    # Two layers a stage, and what lies outside of them: the embedding, or the norm and the head.
    sharded_parts = TINY.layers // 2 + 1
    for rank in counts:
        assert rank["reduce_scatter_base"] == sharded_parts * (chunk_count if shards_gradients else 1)
        assert rank["allgather_base"] == 2 * sharded_parts * chunk_count, "parameters, forward and backward"
        assert rank["allreduce"] == 1, "the loss"


@pytest.mark.parametrize("busy_replicas", [[0, 1], [1, 1]], ids=["both", "one"])
def test_replicas_sum_their_gradients_in_one_message_a_step_whatever_they_run(
    groups: GroupPool, busy_replicas: list[int]
) -> None:
    batch = make_batch([6, 6, 9])
    plan = make_plan([[chunk(*cut(0, 6)), chunk(*cut(1, 6))], [chunk(*cut(2, 9))]], 1, batch, replicas=busy_replicas)

    counts = groups.run(4, count_collectives, TINY, 2, 1, 2, plan, batch, True)

    assert [rank["allreduce"] for rank in counts] == [2] * 4, "the gradients, together, and the loss"
    chunk_counts = [2, 2, 1, 1] if busy_replicas == [0, 1] else [0, 0, 3, 3]
    assert [rank["reduce_scatter_base"] for rank in counts] == [(TINY.layers + 1) * count for count in chunk_counts]


@pytest.mark.parametrize("sp_size", [1, 2, 4])
def test_whole_gradients_take_the_memory_that_the_model_counts(groups: GroupPool, sp_size: int) -> None:
    batch = make_batch([23, 6])
    plan = make_plan([[chunk(*cut(0, 23), *cut(1, 6))]], 1, batch)

    steps = run_plan(groups, plan, batch, sp_size, shards_gradients=False)

    id_bytes = 8  # the embedding saves the ids
    per_token = token_bytes(TINY.shape, FP64_BYTES, sp_size) + logits_bytes(TINY.shape, FP64_BYTES) + id_bytes
    parameter_bytes = FP64_BYTES * parameter_count(TINY.shape)
    assert sum(step.peak_bytes for step in steps) == 29 * per_token + parameter_bytes + sp_size * parameter_bytes


def test_whole_gradients_in_bf16_are_added_up_in_fp32(groups: GroupPool) -> None:
    batch = make_batch([6] * 16)
    plan = make_plan([[chunk(*cut(index, 6)) for index in range(16)]], 1, batch)

    exact = gradients_of(run_plan(groups, plan, batch, 2, dtype=torch.float32))
    by_chunk = gradients_of(run_plan(groups, plan, batch, 2, dtype=torch.bfloat16))
    by_step = gradients_of(run_plan(groups, plan, batch, 2, dtype=torch.bfloat16, shards_gradients=False))

    for name, gradient in exact.items():
        errors = [torch.linalg.vector_norm(one[name] - gradient) for one in (by_chunk, by_step)]
        assert errors[1] <= 1.05 * errors[0], name
