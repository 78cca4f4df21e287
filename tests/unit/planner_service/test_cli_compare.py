"""`infinipipe compare`: one table, one picture, and what it says about mistakes."""

import dataclasses
import importlib.abc
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import profile_to_json
from infinipipe_planner.baselines.comparison import METHODS
from infinipipe_planner.cli import build_app
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile

LENGTHS = github_lengths(24, 32_768)
QUICK = "paper,seq1f1b,ulysses"


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


@pytest.fixture
def profile_path(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(llama_profile()))
    return path


@pytest.fixture
def lengths_path(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"lengths": LENGTHS}))
    return path


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:  # noqa: ARG002  # given
            if fullname.partition(".")[0] == "matplotlib":
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "infinipipe_planner.cli.plot", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


def run(app: typer.Typer, profile: Path, lengths: Path, *arguments: object) -> Result:
    words = ["compare", "--profile", profile, "--lengths", lengths, *arguments]
    return CliRunner().invoke(app, list(map(str, words)))


def test_everything_there_is_stands_in_the_table_fastest_first(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    result = run(app, profile_path, lengths_path, "--format", "json")

    assert result.exit_code == 0, result.output
    records = json.loads(result.stdout)
    assert {record["policy"] for record in records} == set(METHODS)
    times_s = [record["total_s"] for record in records]
    assert times_s == sorted(times_s)
    assert records[-1]["speed_up"] == 1.0
    assert {record["speed_up_over"] for record in records} == {records[-1]["policy"]}


def test_the_parts_of_every_time_add_up_to_it(app: typer.Typer, profile_path: Path, lengths_path: Path) -> None:
    records = json.loads(run(app, profile_path, lengths_path, "--policies", QUICK, "--format", "json").stdout)

    for record in records:
        parts = ("work_s", "fixed_s", "recompute_s", "all2all_s", "zero_s", "bubble_s")
        assert record["total_s"] == pytest.approx(sum(record[part] for part in parts))
        assert record["tokens_per_s"] == pytest.approx(sum(LENGTHS) / record["total_s"])


def test_the_table_keeps_within_eighty_columns_and_is_quiet_off_a_terminal(
    app: typer.Typer, profile_path: Path, lengths_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    result = run(app, profile_path, lengths_path)

    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    table = result.stdout.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert len(table) == 2 + len(METHODS)
    assert any(line.startswith("full-recompute") and line.endswith("x") for line in table)


def test_speed_ups_refer_to_the_baseline_that_is_asked_for(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    result = run(app, profile_path, lengths_path, "--policies", QUICK, "--baseline", "seq1f1b", "--format", "json")

    speed_ups = {record["policy"]: record["speed_up"] for record in json.loads(result.stdout)}
    assert speed_ups["seq1f1b"] == 1.0


def test_what_does_not_fit_says_why_beside_what_does(app: typer.Typer, tmp_path: Path) -> None:
    profile, lengths = tmp_path / "p.json", tmp_path / "l.json"
    profile.write_text(profile_to_json(llama_profile(device_memory_bytes=24e9)))
    lengths.write_text("[131072, 131072]")

    result = run(app, profile, lengths, "--policies", "no-recompute,paper,ulysses")

    assert result.exit_code == 0, result.output
    assert "speed-up over paper" in result.stdout
    assert "no-recompute does not fit: the batch does not fit in memory: stage " in result.stdout
    assert "without recompute, 22,080,000,000 are usable" in result.stdout
    assert "paper: 1 pipeline" in result.stdout


def test_it_fails_when_nothing_fits(app: typer.Typer, tmp_path: Path, lengths_path: Path) -> None:
    profile = tmp_path / "p.json"
    profile.write_text(profile_to_json(llama_profile(device_memory_bytes=1e9)))

    result = run(app, profile, lengths_path, "--policies", QUICK)

    assert result.exit_code == 1
    assert result.stdout.count("does not fit: ") == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policies", "papr"), "unknown policy 'papr'; did you mean 'paper'?"),
        (("--policies", QUICK, "--baseline", "gpipe"), "unknown baseline 'gpipe'; did you mean 'paper'?"),
        (("--plot", "picture.docx"), "--plot picture.docx: the ending must be one of "),
        (("--plot", "nowhere/picture.png"), "--plot nowhere/picture.png: there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    app: typer.Typer, profile_path: Path, lengths_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    result = run(app, profile_path, lengths_path, *arguments)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {sentence}")
    assert result.stdout == ""


def test_lengths_that_cannot_be_planned_are_refused(app: typer.Typer, profile_path: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "zero.json"
    lengths.write_text("[4, 0]")

    result = run(app, profile_path, lengths)

    assert result.exit_code == 2
    assert result.stderr == "error: sequence 1 has 0 tokens, it needs at least 1\n"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(
    app: typer.Typer, profile_path: Path, lengths_path: Path, tmp_path: Path, ending: str
) -> None:
    picture = tmp_path / f"compare.{ending}"

    result = run(app, profile_path, lengths_path, "--policies", QUICK, "--plot", picture)

    assert result.exit_code == 0, result.output
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert len(content) < 150_000


@pytest.mark.usefixtures("without_matplotlib")
def test_a_picture_without_matplotlib_is_refused_before_the_work(
    app: typer.Typer, profile_path: Path, lengths_path: Path, tmp_path: Path
) -> None:
    result = run(app, profile_path, lengths_path, "--plot", tmp_path / "compare.png")

    assert result.exit_code == 1
    assert result.stderr == "error: --plot needs matplotlib, which is not installed: pip install 'infinipipe[plot]'\n"


@pytest.mark.usefixtures("without_matplotlib")
def test_the_table_needs_no_matplotlib(app: typer.Typer, profile_path: Path, lengths_path: Path) -> None:
    assert run(app, profile_path, lengths_path, "--policies", QUICK).exit_code == 0


def test_node_links_of_the_profile_decide_what_crossing_a_node_costs(
    app: typer.Typer, profile_path: Path, lengths_path: Path, tmp_path: Path
) -> None:
    from infinipipe_contract.profile import derive_node_links  # noqa: PLC0415  # one use

    profile = llama_profile()
    links = derive_node_links(profile)
    faster = dataclasses.replace(
        profile, nodes=dataclasses.replace(links, inter_node_bytes_per_s=8 * links.inter_node_bytes_per_s)
    )
    faster_path = tmp_path / "faster.json"
    faster_path.write_text(profile_to_json(faster))

    slow, fast = (
        {
            r["policy"]: r["total_s"]
            for r in json.loads(run(app, p, lengths_path, "--policies", QUICK, "--format", "json").stdout)
        }
        for p in (profile_path, faster_path)
    )

    assert fast["ulysses"] < slow["ulysses"]
    assert fast["paper"] == slow["paper"]
