"""Replicas of the pipeline: loss and every gradient equal the reference, whatever each replica has to run."""

import dataclasses

import pytest
import torch

from infinipipe_contract.plan import Chunk
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_executor.groups import GroupPool, ProcessGroup
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.profiles import make_profile
from support_executor.proof import TOLERANCE, largest_error, prove, run_plan
from support_executor.ranks import SEED, clip, run_step_in_small_buckets, run_step_without_sum, train_replicas
from support_executor.reference import FAMILIES, TINY, reference_step, reference_training

LENGTHS_TOKENS = [31, 12, 1, 8, 26, 5, 9, 1]
"""Sequences 0 to 3 make the chunks of one replica, 4 to 7 those of the other."""

SHAPES: dict[str, list[list[Chunk]]] = {
    "batched beside split": [
        [chunk(*cut(0, 31)), chunk(*cut(1, 12), *cut(2, 1)), chunk(*cut(3, 8))],
        [*map(chunk, cut(4, 13, 12, 1)), *map(chunk, cut(6, 1, 8)), chunk(*cut(5, 5), *cut(7, 1))],
    ],
    "split beside hybrid": [
        [*map(chunk, cut(0, 15, 9, 7)), *map(chunk, cut(1, 5, 7)), chunk(*cut(2, 1), *cut(3, 8))],
        [chunk(cut(4, 13, 13)[0], *cut(6, 9)), chunk(cut(4, 13, 13)[1], *cut(5, 5), *cut(7, 1))],
    ],
}
LAYOUTS = [(2, 1, 1), (2, 2, 1), (2, 1, 2), (4, 1, 1)]
"""Replicas, stages, ranks of a stage; with four replicas, two of them are empty."""


@pytest.mark.parametrize("shards_gradients", [True, False], ids=["zero3", "zero2"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), LAYOUTS)
def test_loss_and_gradients_equal_one_sequence_at_a_time(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int, shape: str, shards_gradients: bool
) -> None:
    batch = make_batch(LENGTHS_TOKENS)
    plan = make_plan(SHAPES[shape], pp_size, batch, varied(TINY.layers // pp_size), replicas=[0, 1])

    prove(groups, plan, batch, sp_size, dp_size=dp_size, shards_gradients=shards_gradients)


def test_eight_ranks_of_two_replicas_two_stages_and_two_ranks_a_stage(groups: GroupPool) -> None:
    batch = make_batch(LENGTHS_TOKENS)
    plan = make_plan(SHAPES["split beside hybrid"], 2, batch, varied(2), replicas=[1, 0])

    steps = prove(groups, plan, batch, 2, dp_size=2)

    # Replica 0 has two chunks, replica 1 six, and each sends its own alone: per chunk a message there and one back.
    assert [step.message_count for step in steps] == [4] * 4 + [12] * 4


@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("chunk_counts", [(5, 6), (1, 8)], ids=str)
def test_replicas_run_different_numbers_of_chunks(
    groups: GroupPool, chunk_counts: tuple[int, int], pp_size: int, sp_size: int
) -> None:
    batch = make_batch([5] * sum(chunk_counts))
    first = [chunk(*cut(index, 5)) for index in range(chunk_counts[0])]
    second = [chunk(*cut(index, 5)) for index in range(chunk_counts[0], sum(chunk_counts))]

    prove(groups, make_plan([first, second], pp_size, batch, replicas=[0, 1]), batch, sp_size, dp_size=2)


def test_one_long_sequence_beside_eight_short_ones(groups: GroupPool) -> None:
    batch = make_batch([40, *[5] * 8])
    short = [chunk(*cut(index, 5)) for index in range(1, 9)]

    plan = make_plan([[chunk(*cut(0, 40))], short], 1, batch, replicas=[0, 1])
    prove(groups, plan, batch, 1, dp_size=2)


@pytest.mark.parametrize("shards_gradients", [True, False], ids=["zero3", "zero2"])
@pytest.mark.parametrize("busy_replica", [0, 1])
@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (2, 1), (1, 2)])
def test_a_replica_without_a_chunk_adds_zeros(
    groups: GroupPool, pp_size: int, sp_size: int, busy_replica: int, shards_gradients: bool
) -> None:
    batch = make_batch([23])
    plan = make_plan([list(map(chunk, cut(0, 12, 11)))], pp_size, batch, replicas=[busy_replica])

    steps = prove(groups, plan, batch, sp_size, dp_size=2, shards_gradients=shards_gradients)

    idle = [step for rank, step in enumerate(steps) if rank // (pp_size * sp_size) != busy_replica]
    assert [(step.message_count, step.pass_count) for step in idle] == [(0, 0)] * (pp_size * sp_size)


@pytest.mark.parametrize("shards_gradients", [True, False], ids=["zero3", "zero2"])
def test_several_pipelines_of_several_replicas_add_up(groups: GroupPool, shards_gradients: bool) -> None:
    batch = make_batch([17, 9, 12, 4, 6])
    shape = [[*map(chunk, cut(0, 9, 8))], [chunk(*cut(1, 9))], [chunk(*cut(2, 12))], [chunk(*cut(3, 4), *cut(4, 6))]]

    plan = make_plan(shape, 2, batch, replicas=[1, 0, 1, 0])
    prove(groups, plan, batch, 1, dp_size=2, shards_gradients=shards_gradients)


@pytest.mark.parametrize("replicas", [[0, 1], [1, 1]], ids=["both busy", "one empty"])
def test_a_tied_embedding_adds_up_over_replicas_and_over_both_ends(groups: GroupPool, replicas: list[int]) -> None:
    batch = make_batch([17, 9])
    plan = make_plan([[*map(chunk, cut(0, 9, 8))], [chunk(*cut(1, 9))]], 2, batch, replicas=replicas)

    prove(groups, plan, batch, 1, FAMILIES["qwen 2"], dp_size=2)


@pytest.mark.parametrize("limit_bytes", [1, 4096])
def test_gradients_may_go_in_many_messages(groups: GroupPool, limit_bytes: int) -> None:
    batch = make_batch([9, 12])
    plan = make_plan([[chunk(*cut(0, 9))], [chunk(*cut(1, 12))]], 1, batch, replicas=[0, 1])

    steps = groups.run(4, run_step_in_small_buckets, limit_bytes, TINY, 2, 2, plan, batch)

    assert largest_error(steps, reference_step(TINY, SEED, batch)) <= TOLERANCE


def test_every_target_weighs_the_same_however_few_a_replica_has(groups: GroupPool) -> None:
    token_ids = make_batch([20, 20])
    masks = (torch.arange(20) >= 15, torch.arange(20) == 19)
    batch = Batch(
        tuple(make_sequence(one.token_ids, mask) for one, mask in zip(token_ids.sequences, masks, strict=True))
    )

    plan = make_plan([[chunk(*cut(0, 20))], [chunk(*cut(1, 20))]], 1, batch, replicas=[0, 1])
    prove(groups, plan, batch, 1, dp_size=2)

    assert [int((one.target_ids >= 0).sum()) for one in batch.sequences] == [5, 1]


@pytest.mark.parametrize("max_norm", [0.05, 1e9], ids=["clipped", "unclipped"])
@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), LAYOUTS)
def test_the_gradient_norm_counts_every_parameter_once(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int, max_norm: float
) -> None:
    batch = make_batch([19, 7])
    plan = make_plan([[*map(chunk, cut(0, 10, 9))], [chunk(*cut(1, 7))]], pp_size, batch, replicas=[0, 1])

    results = groups.run(dp_size * pp_size * sp_size, clip, TINY, pp_size, sp_size, plan, batch, max_norm, dp_size)

    reference = reference_step(TINY, SEED, batch)
    whole = torch.cat([gradient.flatten() for gradient in reference.gradients.values()])
    expected_norm = torch.linalg.vector_norm(whole).item()
    factor = min(1.0, max_norm / expected_norm)
    for norm, gradients in results:
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, factor * reference.gradients[name], rtol=1e-9, atol=1e-15)


def test_replicas_stay_equal_to_the_last_bit_while_they_train(groups: GroupPool) -> None:
    batch = make_batch([11, 4, 6])
    plan = make_plan([[*map(chunk, cut(0, 6, 5)), chunk(*cut(1, 4))], [chunk(*cut(2, 6))]], 2, batch, replicas=[0, 1])

    ranks = groups.run(4, train_replicas, TINY, 2, 2, plan, batch, 30)

    expected = reference_training(TINY, SEED, batch, 30)
    for steps, _ in ranks:
        assert steps == [pytest.approx(one, rel=1e-9) for one in expected]
    (_, first), (_, second), (_, third), (_, fourth) = ranks
    assert (first, second) == (third, fourth)
    assert first != second


@pytest.mark.parametrize(
    ("dp_size", "pp_size", "sp_size", "lengths"),
    [
        (2, 2, 1, (90, 7, 1, 33, 12, 20, 5)),
        (2, 1, 2, (90, 7, 1, 33, 12, 20, 5)),
        (2, 2, 1, (120,)),
        (2, 1, 2, (120,)),
        (4, 1, 1, (40, 9)),
    ],
)
def test_plans_of_the_planner_for_replicas_give_the_gradients_of_one_sequence_at_a_time(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int, lengths: tuple[int, ...]
) -> None:
    profile = make_profile(TINY, pp_size, sp_size, activation_bytes=3e5, dp_size=dp_size)
    plan = solve_plan(lengths, profile, PlanOptions())

    prove(groups, plan, make_batch(lengths), sp_size, dp_size=dp_size)

    assert len({pipeline.replica_index for pipeline in plan.pipelines}) == min(dp_size, len(lengths))


def test_dropout_masks_differ_from_replica_to_replica(groups: GroupPool) -> None:
    token_ids = make_batch([30]).sequences[0]
    batch = Batch((token_ids, token_ids))
    config = dataclasses.replace(TINY, dropout=0.3)
    plans = [
        make_plan([[chunk(*cut(0, 30))], [chunk(*cut(1, 30))]], 1, batch, replicas=ranks) for ranks in ([0, 0], [0, 1])
    ]

    one_rank, two_ranks = (run_plan(groups, plan, batch, 1, config, dp_size=2)[0].loss for plan in plans)

    assert one_rank != two_ranks


def test_a_rank_that_leaves_out_the_sum_is_missed_by_the_others_which_name_step_and_sum() -> None:
    batch = make_batch([12, 7])
    plan = make_plan([[chunk(*cut(0, 12))], [chunk(*cut(1, 7))]], 1, batch, replicas=[0, 1])

    with ProcessGroup(2) as group:
        (error,) = group.run(run_step_without_sum, TINY, plan, batch, 1, 2.0, lost_rank=1)

    assert error.startswith(
        "PeerLostError: rank 0 lost another rank during step 0, the sum of the gradients over the replicas: "
    ), error
