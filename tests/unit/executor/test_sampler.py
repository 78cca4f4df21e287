"""The batch of a step is a pure function of the seed and the step."""

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


def test_the_last_batch_of_an_epoch_holds_what_is_left_and_none_straddles_two_epochs() -> None:
    sampler = BatchSampler(10, 4, seed=0)

    batches = [sampler.indices(step) for step in range(6)]

    assert sampler.steps_per_epoch == 3
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert sorted(index for batch in batches[:3] for index in batch) == list(range(10))
    assert sorted(index for batch in batches[3:] for index in batch) == list(range(10))


def test_a_corpus_smaller_than_a_batch_makes_smaller_batches_and_draws_nothing_twice() -> None:
    sampler = BatchSampler(3, 7, seed=1)

    assert sampler.steps_per_epoch == 1
    assert all(sorted(sampler.indices(step)) == [0, 1, 2] for step in range(5))


def test_a_step_begins_where_the_steps_before_it_have_ended_also_at_the_end_of_an_epoch() -> None:
    sampler = BatchSampler(10, 4, seed=0)

    assert [sampler.position(step) for step in range(5)] == [(0, 0), (0, 4), (0, 8), (1, 0), (1, 4)]


@pytest.mark.parametrize("ends", [(2, 5, 9), (3, 6, 9), (1, 2, 9)], ids=["within", "at the end", "twice in an epoch"])
def test_runs_that_stop_and_go_on_draw_what_one_run_draws(ends: tuple[int, int, int]) -> None:
    whole = [BatchSampler(10, 4, seed=5).indices(step) for step in range(9)]

    pieces, step = [], 0
    for end in ends:
        sampler = BatchSampler(10, 4, seed=5)  # a new process: drew ahead, and what it did not consume is drawn again
        sampler.indices(end + 1)
        pieces += [sampler.indices(step) for step in range(step, end)]
        step = end

    assert pieces == whole


def test_nothing_can_be_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="0 sequences"):
        BatchSampler(0, 4, seed=0)
