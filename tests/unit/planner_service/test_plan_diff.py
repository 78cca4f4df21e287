"""Two plans beside each other, and `infinipipe diff`."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_contract.codec import plan_to_json
from infinipipe_contract.plan import ExecutionPlan, Slice
from infinipipe_planner.cli import build_app
from infinipipe_planner.plan_diff import Figure, diff_plans, format_change, format_value
from support_contract import build_plan, picture_pipeline, small_profile, two_stage_plan


def other_plan() -> ExecutionPlan:
    """The batch of the two-stage plan, whole sequences only."""
    first = picture_pipeline(
        [[Slice(0, 0, 12)], [Slice(1, 0, 3)], [Slice(2, 0, 5)]], "F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2"
    )
    return dataclasses.replace(build_plan(small_profile(), [12, 3, 5], first), policy="search")


def write(path: Path, plan: ExecutionPlan) -> str:
    path.write_text(plan_to_json(plan))
    return str(path)


def changed(first: ExecutionPlan, second: ExecutionPlan) -> dict[str, Figure]:
    return {figure.name: figure for figure in diff_plans(first, second).figures if figure.differs}


def test_a_plan_differs_from_itself_in_nothing() -> None:
    _, _, plan = two_stage_plan()

    found = diff_plans(plan, plan)

    assert not any(figure.differs for figure in found.figures)
    assert (found.runs_the_same, found.moved_sequence_count) == (True, 0)


def test_the_step_and_job_of_a_plan_are_not_compared() -> None:
    _, _, plan = two_stage_plan()

    assert diff_plans(plan, dataclasses.replace(plan, job="other", step=9)).runs_the_same


def test_policy_chunks_recompute_time_and_memory_are_compared() -> None:
    _, _, plan = two_stage_plan()

    found = changed(plan, other_plan())

    assert (found["policy"].first, found["policy"].second) == ("paper", "search")
    assert (found["split_chunks"].first, found["split_chunks"].second) == (1, 0)
    assert (found["recomputed_layers"].first, found["recomputed_layers"].second) == (3, 0)
    assert {"predicted_s", "bubble_ratio", "stage_0_peak_bytes", "stage_1_peak_bytes"} <= set(found)
    assert "pipelines" not in found


def test_sequences_that_are_sliced_or_placed_otherwise_are_counted() -> None:
    _, _, plan = two_stage_plan()

    # Sequence 0 was cut, sequence 1 shared a chunk with its tail and has the same place now; sequence 2 never moved.
    assert diff_plans(plan, other_plan()).moved_sequence_count == 1


def test_plans_of_different_batches_have_no_moved_sequences() -> None:
    _, _, plan = two_stage_plan()
    pipeline = picture_pipeline([[Slice(0, 0, 4)]], "F0 B0", "F0 B0")

    assert diff_plans(plan, build_plan(small_profile(), [4], pipeline)).moved_sequence_count is None


def test_a_stage_that_only_one_plan_has_is_compared_with_nothing() -> None:
    _, _, plan = two_stage_plan()
    pipeline = picture_pipeline([[Slice(0, 0, 4)]], "F0 B0", "F0 B0", "F0 B0", "F0 B0")
    longer = build_plan(small_profile(pp_size=4), [4], pipeline)

    found = changed(plan, longer)["stage_3_peak_bytes"]

    assert found.first is None
    assert format_value(found.name, found.first) == "-"
    assert format_change(found) == ""


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (Figure("predicted_s", 2.0, 3.0), ("2.000 s", "3.000 s", "+50.0%")),
        (Figure("bubble_ratio", 0.25, 0.2), ("25.0%", "20.0%", "-5.0 points")),
        (Figure("stage_0_peak_bytes", 2048.0, 1024.0), ("2.0 KiB", "1.0 KiB", "-50.0%")),
        (Figure("chunks", 4, 7), ("4", "7", "+3")),
        (Figure("policy", "paper", "search"), ("paper", "search", "")),
        (Figure("solve_s", 0.0, 1.0), ("0.000 s", "1.000 s", "")),
    ],
)
def test_figures_are_written_with_their_units(figure: Figure, shown: tuple[str, str, str]) -> None:
    written = (format_value(figure.name, figure.first), format_value(figure.name, figure.second), format_change(figure))

    assert written == shown


def test_diff_prints_what_differs_within_80_columns(tmp_path: Path) -> None:
    _, _, plan = two_stage_plan()
    files = write(tmp_path / "a.json", plan), write(tmp_path / "b.json", other_plan())

    result = CliRunner().invoke(build_app(), ["diff", *files])

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["policy", "paper", "search"]
    assert lines[-1] == "1 of 3 sequences are sliced or placed in another way"
    assert max(map(len, lines)) <= 80


def test_diff_says_when_both_plans_run_the_same(tmp_path: Path) -> None:
    _, _, plan = two_stage_plan()
    file = write(tmp_path / "a.json", plan)

    result = CliRunner().invoke(build_app(), ["diff", file, file])

    assert result.stdout.splitlines()[-1] == "both plans run the same actions on the same slices"


def test_diff_writes_json(tmp_path: Path) -> None:
    _, _, plan = two_stage_plan()
    files = write(tmp_path / "a.json", plan), write(tmp_path / "b.json", other_plan())

    result = CliRunner().invoke(build_app(), ["diff", *files, "--format", "json"])

    tree = json.loads(result.stdout)
    assert tree["moved_sequence_count"] == 1
    assert {"name": "policy", "first": "paper", "second": "search"} in tree["figures"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot read {path}: No such file or directory"), ("{}x", "{path}: invalid plan: ")],
)
def test_a_file_that_is_no_plan_is_a_usage_error(tmp_path: Path, content: str | None, sentence: str) -> None:
    _, _, plan = two_stage_plan()
    path = tmp_path / "b.json"
    if content is not None:
        path.write_text(content)

    result = CliRunner().invoke(build_app(), ["diff", write(tmp_path / "a.json", plan), str(path)])

    assert result.exit_code == 2
    assert result.stderr.startswith("error: " + sentence.format(path=path))
