"""Many steps in a row."""

import pytest

from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.ranks import SEED, train_steps
from support_executor.reference import TINY, reference_training

STEPS = 200

# Rounding errors of about 1e-16 that AdamW lets grow: much smaller than anything a wrong message would do.
TOLERANCE = 1e-7


@pytest.mark.parametrize(("pp_size", "sp_size"), [(2, 2), (4, 1)])
def test_two_hundred_steps_on_four_ranks_train_as_one_process_does(
    groups: GroupPool, pp_size: int, sp_size: int
) -> None:
    batch = make_batch([11, 4, 6])
    first, second = cut(0, 6, 5)
    plan = make_plan([[chunk(first), chunk(second, *cut(1, 4))], [chunk(*cut(2, 6))]], pp_size, batch, varied(1))

    ranks = groups.run(4, train_steps, TINY, pp_size, sp_size, plan, batch, STEPS, timeout_s=100.0)

    expected = reference_training(TINY, SEED, batch, STEPS)
    assert expected[-1][0] < 0.1 * expected[0][0]
    for steps in ranks:
        for (loss, norm), (expected_loss, expected_norm) in zip(steps, expected, strict=True):
            assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
            assert norm == pytest.approx(expected_norm, rel=TOLERANCE)
