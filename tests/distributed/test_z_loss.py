"""The z-loss: its gradients are exact on every layout, and it is told apart from the cross-entropy."""

import pytest

from support_executor.closeness import relative_error
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.precision_ranks import run_z_step
from support_executor.proof import TOLERANCE
from support_executor.ranks import SEED
from support_executor.reference import FAMILIES, TINY, reference_step

pytestmark = pytest.mark.distributed

Z_LOSS = 0.1
"""Large, so that its gradients are no rounding of those of the cross-entropy."""


@pytest.mark.parametrize("family", ["llama", "qwen 2"])
@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), [(1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1), (1, 2, 2)])
def test_gradients_are_those_of_both_losses_and_the_loss_is_the_cross_entropy_alone(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int, family: str
) -> None:
    config = TINY if family == "llama" else FAMILIES[family]
    batch = make_batch([26, 9, 1, 12], masked=[1])
    first, second = cut(0, 15, 11)
    plan = make_plan(
        [[chunk(first), chunk(second, *cut(1, 9))], [chunk(*cut(2, 1), *cut(3, 12))]],
        pp_size,
        batch,
        varied(1),
        replicas=[0, dp_size - 1],
    )

    steps = groups.run(dp_size * pp_size * sp_size, run_z_step, config, dp_size, pp_size, sp_size, plan, batch, Z_LOSS)

    expected = reference_step(config, SEED, batch, z_loss=Z_LOSS)
    plain = reference_step(config, SEED, batch)
    assert relative_error(expected.gradients["norm.weight"], plain.gradients["norm.weight"]) > 1e-2
    assert {name for step in steps for name in step.gradients} == set(expected.gradients)
    for step in steps:
        assert step.loss == pytest.approx(plain.loss, rel=TOLERANCE)
        assert step.z_loss == pytest.approx(expected.z_loss, rel=TOLERANCE)
        for name, gradient in step.gradients.items():
            assert relative_error(gradient, expected.gradients[name]) <= TOLERANCE, name
