"""Clipping over the whole model."""

import pytest
import torch

from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.ranks import SEED, clip
from support_executor.reference import FAMILIES, TINY, reference_step

LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize("max_norm", [0.05, 1e9], ids=["clipped", "unclipped"])
@pytest.mark.parametrize(("pp_size", "sp_size"), LAYOUTS)
def test_every_layout_tells_the_norm_of_the_whole_model_and_applies_one_factor(
    groups: GroupPool, pp_size: int, sp_size: int, max_norm: float
) -> None:
    batch = make_batch([19, 7])
    first, second = cut(0, 10, 9)
    plan = make_plan([[chunk(first), chunk(second, *cut(1, 7))]], pp_size, batch)

    results = groups.run(pp_size * sp_size, clip, TINY, pp_size, sp_size, plan, batch, max_norm)

    reference = reference_step(TINY, SEED, batch)
    whole = torch.cat([gradient.flatten() for gradient in reference.gradients.values()])
    expected_norm = torch.linalg.vector_norm(whole).item()
    assert expected_norm > 0.05
    factor = min(1.0, max_norm / expected_norm)
    for norm, gradients in results:
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, factor * reference.gradients[name], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("sp_size", [1, 2])
def test_a_tied_embedding_on_two_replicas_counts_once(groups: GroupPool, sp_size: int) -> None:
    config = FAMILIES["qwen 2"]
    batch = make_batch([19, 7])
    plan = make_plan([[*map(chunk, cut(0, 10, 9))], [chunk(*cut(1, 7))]], 2, batch, replicas=[0, 1])

    results = groups.run(4 * sp_size, clip, config, 2, sp_size, plan, batch, 0.05, 2)

    reference = reference_step(config, SEED, batch)
    expected_norm = torch.linalg.vector_norm(torch.cat([one.flatten() for one in reference.gradients.values()])).item()
    for norm, gradients in results:
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, 0.05 / expected_norm * reference.gradients[name], rtol=1e-9, atol=1e-15
            )
