"""Every family of models: loss and every gradient equal the reference, and tied embeddings stay one."""

import dataclasses

import pytest
import torch

from support_executor.closeness import relative_error
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.proof import prove
from support_executor.ranks import SEED, clip, train_embeddings
from support_executor.reference import FAMILIES, reference_step

STEPS = 100


@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_equal_one_sequence_at_a_time(
    groups: GroupPool, family: str, pp_size: int, sp_size: int
) -> None:
    batch = make_batch([31, 12, 1, 9])
    first, second = cut(0, 17, 14)
    chunks = [chunk(first), chunk(second, *cut(2, 1)), chunk(*cut(1, 12)), *map(chunk, cut(3, 4, 5))]

    prove(groups, make_plan([chunks], pp_size, batch, varied(4 // pp_size)), batch, sp_size, FAMILIES[family])


@pytest.mark.parametrize("max_norm", [0.05, 1e9], ids=["clipped", "unclipped"])
@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (2, 1), (2, 2)])
def test_a_tied_embedding_counts_once_in_the_norm_and_is_clipped_at_both_ends(
    groups: GroupPool, pp_size: int, sp_size: int, max_norm: float
) -> None:
    config, batch = FAMILIES["qwen 3, tied"], make_batch([19, 7])
    plan = make_plan([[*map(chunk, cut(0, 10, 9)), chunk(*cut(1, 7))]], pp_size, batch)

    results = groups.run(pp_size * sp_size, clip, config, pp_size, sp_size, plan, batch, max_norm)

    reference = reference_step(config, SEED, batch)
    whole = torch.cat([gradient.flatten() for gradient in reference.gradients.values()])
    expected_norm = torch.linalg.vector_norm(whole).item()
    factor = min(1.0, max_norm / expected_norm)
    for norm, gradients in results:
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        for name, gradient in gradients.items():
            assert relative_error(gradient, factor * reference.gradients[name]) <= 1e-9, name


@pytest.mark.parametrize("sp_size", [1, 2])
def test_both_copies_of_a_tied_embedding_have_the_same_bits_after_a_hundred_steps(
    groups: GroupPool, sp_size: int
) -> None:
    config = dataclasses.replace(FAMILIES["qwen 2"], layers=2)
    batch = make_batch([11, 6])
    plan = make_plan([[chunk(*cut(0, 11), *cut(1, 6))]], 2, batch)

    shards = groups.run(2 * sp_size, train_embeddings, config, 2, sp_size, plan, batch, STEPS)

    for (before, after), (other_before, other_after) in zip(shards[:sp_size], shards[sp_size:], strict=True):
        assert torch.equal(before, other_before)
        assert torch.equal(after, other_after)
        assert relative_error(after, before) > 0.1
