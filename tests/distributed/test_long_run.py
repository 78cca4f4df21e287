"""Many steps in a row."""

from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.ranks import run_steps
from support_executor.reference import TINY


def test_two_hundred_steps_on_four_ranks_neither_hang_nor_drift(groups: GroupPool) -> None:
    batch = make_batch([11, 4, 6])
    first, second = cut(0, 6, 5)
    plan = make_plan([[chunk(first), chunk(second, *cut(1, 4))], [chunk(*cut(2, 6))]], 4, batch, varied(1))

    deviations = groups.run(4, run_steps, TINY, 4, 1, plan, batch, 200, timeout_s=100.0)

    assert max(deviations) <= 1e-6
