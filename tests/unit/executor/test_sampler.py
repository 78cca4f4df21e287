"""The batch of a step is a pure function of the seed and the step."""

from collections import Counter

import pytest

from infinipipe_executor.data.sampler import BatchSampler


def test_two_samplers_of_one_seed_draw_the_same_batches_in_any_order_of_asking() -> None:
    one, other = BatchSampler(50, 8, seed=3), BatchSampler(50, 8, seed=3)

    forwards = [one.indices(step) for step in range(20)]
    backwards = [other.indices(step) for step in reversed(range(20))][::-1]

    assert forwards == backwards


def test_another_seed_draws_other_batches() -> None:
    assert BatchSampler(50, 8, seed=3).indices(0) != BatchSampler(50, 8, seed=4).indices(0)


def test_every_epoch_draws_every_sequence_once_in_another_order() -> None:
    sampler = BatchSampler(24, 8, seed=0)

    epochs = [[index for step in range(first, first + 3) for index in sampler.indices(step)] for first in (0, 3)]

    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_the_last_batch_of_an_epoch_is_filled_from_the_next_one() -> None:
    sampler = BatchSampler(10, 4, seed=0)

    drawn = [index for step in range(5) for index in sampler.indices(step)]

    assert [len(sampler.indices(step)) for step in range(5)] == [4] * 5
    assert set(Counter(drawn).values()) == {2}  # 5 batches of 4 are exactly two epochs of 10


def test_a_corpus_smaller_than_a_batch_is_drawn_several_times() -> None:
    assert sorted(Counter(BatchSampler(3, 7, seed=1).indices(0)).values()) == [2, 2, 3]


def test_nothing_can_be_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="0 sequences"):
        BatchSampler(0, 4, seed=0)
