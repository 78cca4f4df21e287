"""Where the longest sequence is cut."""

import dataclasses

import pytest

from infinipipe_contract.profile import ComputeCost
from infinipipe_planner.chunking.slice_plan import split_slice_plan
from infinipipe_planner.cost_model.slice_work import SliceWork
from support_planner.profiles import llama_profile, round_profile


@pytest.mark.parametrize(("longest_tokens", "slice_count"), [(1, 1), (2, 2), (8, 8), (9, 8), (1000, 999), (98_304, 8)])
def test_slices_are_never_empty_and_sum_to_the_sequence(longest_tokens: int, slice_count: int) -> None:
    slice_plan = split_slice_plan(longest_tokens, slice_count, SliceWork(llama_profile()))

    assert len(slice_plan) == slice_count
    assert min(slice_plan) >= 1
    assert sum(slice_plan) == longest_tokens


@pytest.mark.parametrize("slice_count", [0, -1, 6])
def test_more_slices_than_tokens_are_refused(slice_count: int) -> None:
    with pytest.raises(ValueError, match=rf"slice_count is {slice_count}, it must be in \[1, 5\]"):
        split_slice_plan(5, slice_count, SliceWork(llama_profile()))


def test_slices_are_equal_where_attention_costs_nothing() -> None:
    profile = dataclasses.replace(round_profile(), backward=ComputeCost(alpha1=0.0, alpha2=1.0, beta1=0.0))

    assert split_slice_plan(100, 4, SliceWork(profile)) == (25, 25, 25, 25)


def test_slices_follow_the_square_root_where_only_attention_costs() -> None:
    profile = dataclasses.replace(round_profile(sp_size=1), backward=ComputeCost(alpha1=1.0, alpha2=0.0, beta1=0.0))

    assert split_slice_plan(100, 4, SliceWork(profile)) == (50, 21, 16, 13)


def test_prefix_tokens_inverts_prefix_work() -> None:
    work = SliceWork(llama_profile())

    assert work.prefix_tokens(work.prefix_work_s(12_345)) == pytest.approx(12_345)
    assert work.prefix_tokens(0.0) == 0.0
