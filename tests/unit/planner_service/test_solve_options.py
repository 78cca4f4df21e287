"""Options that make no sense are refused in a sentence."""

import math

import pytest

from infinipipe_planner.errors import InvalidOptionsError
from infinipipe_planner.options import PlanOptions, check_options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (PlanOptions(policy="papr"), r"unknown policy 'papr'; did you mean 'paper'\?"),
        (PlanOptions(max_slice_count=-1), "max_slice_count is -1, it must be from 0 to 1024"),
        (PlanOptions(node_limit=-5), "node_limit is -5, it must be from 0 to 100000"),
        (PlanOptions(gap_ratio=-0.1), r"gap_ratio is -0.1, it must be in \[0, 1\)"),
        (PlanOptions(gap_ratio=1.0), r"gap_ratio is 1.0, it must be in \[0, 1\)"),
        (PlanOptions(gap_ratio=math.nan), r"gap_ratio is nan, it must be in \[0, 1\)"),
    ],
)
def test_bad_options_are_refused_with_name_value_and_limit(options: PlanOptions, sentence: str) -> None:
    with pytest.raises(InvalidOptionsError, match=sentence):
        check_options(options)


def test_the_defaults_are_accepted() -> None:
    check_options(PlanOptions())
