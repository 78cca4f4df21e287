"""The learning rate is a function of the step; its corners are exact."""

import itertools
import math

import pytest

from infinipipe_executor.config import OptimizerConfig
from infinipipe_executor.schedule import learning_rate


def rates(config: OptimizerConfig, *, steps: int, until: int) -> list[float]:
    return [learning_rate(config, step, steps) for step in range(until)]


def test_a_constant_rate_rises_over_the_warm_up_and_stays() -> None:
    config = OptimizerConfig(learning_rate=0.8, warmup_steps=4)

    assert rates(config, steps=6, until=8) == [0.2, 0.4, 0.6000000000000001, 0.8, 0.8, 0.8, 0.8, 0.8]


def test_without_a_warm_up_the_first_step_has_the_whole_rate() -> None:
    for schedule in ("constant", "linear", "cosine"):
        assert learning_rate(OptimizerConfig(learning_rate=0.5, schedule=schedule), 0, 10) == 0.5


def test_a_linear_rate_falls_from_the_end_of_the_warm_up_to_the_minimum_and_stays_there() -> None:
    config = OptimizerConfig(learning_rate=1.0, schedule="linear", warmup_steps=2, min_learning_rate=0.5)

    # Behind the last of six steps it is at the minimum, so every one of them is trained above it.
    assert rates(config, steps=6, until=9) == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


def test_a_cosine_rate_is_halfway_down_in_the_middle_and_flat_at_both_ends() -> None:
    config = OptimizerConfig(
        learning_rate=3.0, schedule="cosine", warmup_steps=10, decay_steps=110, min_learning_rate=1.0
    )

    assert learning_rate(config, 9, 1000) == 3.0
    assert learning_rate(config, 10, 1000) == 3.0
    assert learning_rate(config, 60, 1000) == pytest.approx(2.0, rel=1e-15)
    assert learning_rate(config, 109, 1000) == pytest.approx(1.0 + (1 - math.cos(math.pi / 100)), rel=1e-12)
    assert learning_rate(config, 110, 1000) == 1.0
    assert learning_rate(config, 999, 1000) == 1.0
    fall = rates(config, steps=1000, until=111)[10:]
    assert all(later < earlier for earlier, later in itertools.pairwise(fall))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_decay_ends_with_the_run_unless_it_is_told_otherwise(schedule: str) -> None:
    to_the_end = OptimizerConfig(learning_rate=1.0, schedule=schedule)  # type: ignore[arg-type]
    sooner = OptimizerConfig(learning_rate=1.0, schedule=schedule, decay_steps=20)  # type: ignore[arg-type]

    assert learning_rate(to_the_end, 19, 40) > 0.25
    assert learning_rate(to_the_end, 40, 40) == 0.0
    assert learning_rate(sooner, 20, 40) == 0.0
    assert learning_rate(sooner, 10, 40) == pytest.approx(0.5)
