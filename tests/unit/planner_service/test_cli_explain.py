"""`infinipipe plan --explain` on the command line."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import profile_to_json
from infinipipe_planner.cli import build_app
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile

WIDTH = 80


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


@pytest.fixture
def lengths_path(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(github_lengths(64, 131_072)))
    return path


def explain(app: typer.Typer, tmp_path: Path, lengths: Path, memory_bytes: float, *more: str) -> Result:
    profile = tmp_path / "profile.json"
    profile.write_text(profile_to_json(llama_profile(device_memory_bytes=memory_bytes)))
    arguments = ["plan", "--profile", str(profile), "--lengths", str(lengths), "--policy", "paper", "--explain", *more]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(WIDTH)})


def test_a_batch_that_fits_shows_the_tightest_moment_and_what_changes_buy(
    app: typer.Typer, tmp_path: Path, lengths_path: Path
) -> None:
    result = explain(app, tmp_path, lengths_path, 26e9)

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert "Memory binds." in result.stdout
    assert sum(" * " in line for line in lines) == 1
    for change in ("+1 GB a device", "+1 recomputed layer", "+1 slice"):
        assert any(line.strip().startswith(change) for line in lines)


def test_a_batch_that_does_not_fit_shows_what_would_do_and_fails(
    app: typer.Typer, tmp_path: Path, lengths_path: Path
) -> None:
    result = explain(app, tmp_path, lengths_path, 12e9)

    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= WIDTH
    assert "does not fit in memory: stage" in " ".join(result.stdout.split())
    assert "instead of 12.00 GB would just do" in " ".join(result.stdout.split())
    assert "error: the batch does not fit in memory" in result.stderr


def test_programs_get_the_same_as_json(app: typer.Typer, tmp_path: Path, lengths_path: Path) -> None:
    result = explain(app, tmp_path, lengths_path, 26e9, "--format", "json")

    content = json.loads(result.stdout)
    assert content["shortage"] == ""
    assert [moment["stage_index"] for moment in content["moments"]] == [0, 1, 2, 3]
    assert {moment["kind"] for moment in content["moments"]} == {"forward"}
    assert len(content["what_ifs"]) == 3


def test_explaining_plans_in_this_process_only(app: typer.Typer, tmp_path: Path, lengths_path: Path) -> None:
    result = explain(app, tmp_path, lengths_path, 26e9, "--server", "127.0.0.1:1")

    assert result.exit_code == 2
    assert "--server is out of place: --explain plans in this process" in result.stderr
