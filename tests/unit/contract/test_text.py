"""Plans read well: golden pictures, reviewed like code."""

import dataclasses
from pathlib import Path

import pytest

from infinipipe_contract.names import nearest, unknown
from infinipipe_contract.text import format_bytes, plan_grid, plan_tables
from support_contract import replica_plan, two_stage_plan

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("name", ["two_stage_grid", "two_stage_tables", "replica_grid", "replica_tables"])
def test_a_plan_prints_as_its_golden_picture(name: str) -> None:
    _, _, plan = replica_plan() if name.startswith("replica") else two_stage_plan()
    plan = dataclasses.replace(plan, digest="0123456789abcdef" * 4)
    text = plan_grid(plan) if name.endswith("grid") else plan_tables(plan)
    assert text + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_long_grids_fold_within_the_width() -> None:
    _, _, plan = two_stage_plan()
    folded = plan_grid(plan, width=24)
    assert max(map(len, folded.splitlines()[1:])) <= 24
    assert folded.split() == plan_grid(plan).split()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**20, "3.0 MiB"), (80e9, "74.5 GiB")]
)
def test_bytes_read_with_a_binary_unit(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_a_misspelt_name_suggests_the_nearest() -> None:
    assert nearest("papr", ["paper", "search"]) == "paper"
    assert nearest("zzz", ["paper"]) is None
    assert unknown("policy", "papr", ["paper", "search"]) == "unknown policy 'papr'; did you mean 'paper'?"
    assert unknown("policy", "zzz", ["b", "a"]) == "unknown policy 'zzz'; known: a, b"
