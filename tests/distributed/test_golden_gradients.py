"""Gradients of several stages beside those of one device that runs the same chunks, bit by bit where sums keep order.

How many stages there are and how many layers are recomputed changes no sum, so no bit. The norm is a sum over all
ranks: its order follows the layout, so what is clipped by it agrees within a tolerance.
"""

import pytest
import torch

from infinipipe_contract.plan import ExecutionPlan
from support_executor.closeness import relative_error
from support_executor.groups import GroupPool
from support_executor.plans import NO_RECOMPUTE, RecomputeCount, chunk, cut, make_batch, make_plan, varied
from support_executor.proof import gradients_of, run_plan
from support_executor.ranks import clip
from support_executor.reference import TINY

BATCH = make_batch([31, 12, 1, 8, 17])
CHUNKS = [
    [
        chunk(cut(0, 15, 9, 7)[0]),
        chunk(cut(0, 15, 9, 7)[1]),
        chunk(cut(0, 15, 9, 7)[2], *cut(2, 1)),
        chunk(*cut(1, 12)),
    ],
    [*map(chunk, cut(4, 10, 7)), chunk(*cut(3, 8))],
]
"""Split, hybrid and batched chunks in two pipelines."""

MAX_NORM, CLIPPED_TOLERANCE = 0.05, 1e-6


def plan_of(pp_size: int, recompute: RecomputeCount = NO_RECOMPUTE) -> ExecutionPlan:
    return make_plan(CHUNKS, pp_size, BATCH, recompute)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_without_clipping_any_number_of_stages_gives_the_bits_of_one_device(
    groups: GroupPool, dtype: torch.dtype
) -> None:
    golden = run_plan(groups, plan_of(1), BATCH, 1, dtype=dtype)

    for pp_size in (1, 2, 4):
        for recompute in (NO_RECOMPUTE, varied(TINY.layers // pp_size)):
            steps = run_plan(groups, plan_of(pp_size, recompute), BATCH, 1, dtype=dtype)

            assert {step.loss for step in steps} == {golden[0].loss}
            gradients = gradients_of(steps)
            assert gradients.keys() == golden[0].gradients.keys()
            for name, gradient in golden[0].gradients.items():
                assert torch.equal(gradients[name], gradient), name


@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), [(1, 2, 1), (1, 4, 1), (1, 2, 2), (2, 2, 1)])
def test_with_clipping_every_layout_agrees_with_one_device_to_a_millionth(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int
) -> None:
    plan = make_plan(CHUNKS, pp_size, BATCH, replicas=[0, dp_size - 1])
    ((golden_norm, golden),) = groups.run(1, clip, TINY, 1, 1, plan_of(1), BATCH, MAX_NORM, 1, torch.float32)

    ranks = groups.run(
        dp_size * pp_size * sp_size, clip, TINY, pp_size, sp_size, plan, BATCH, MAX_NORM, dp_size, torch.float32
    )

    assert golden_norm > MAX_NORM
    assert len({norm for norm, _ in ranks}) == 1, "all ranks scale by the same factor"
    for norm, gradients in ranks:
        assert norm == pytest.approx(golden_norm, rel=CLIPPED_TOLERANCE)
        for name, gradient in gradients.items():
            assert relative_error(gradient, golden[name]) <= CLIPPED_TOLERANCE, name
