"""`infinipipe plan --dry-run`: which layouts fit, how fast they are, and what it says when none does."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import profile_to_json
from infinipipe_planner.cli import build_app
from support_analytic import KNOWN_MODELS
from support_service import PROFILE

# Small enough that every layout is planned in milliseconds.
LENGTHS = [4_000, 900, 300, 200, 100]


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "Llama-3.2-1B" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(KNOWN_MODELS["Llama-3.2-1B"].config))
    return path


@pytest.fixture
def lengths_path(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(LENGTHS))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *map(str, words)])


def dry_run(model: Path, *words: object, device: str = "h100", nodes: int = 1, per_node: int = 4) -> Result:
    cluster = ("--device", device, "--nodes", nodes, "--devices-per-node", per_node)
    return run("--dry-run", "--model", model, *cluster, *words)


def layouts_of(result: Result) -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads(result.stdout)
    return list(content["layouts"])


def test_every_layout_is_planned_and_the_fastest_is_marked(model_path: Path, lengths_path: Path) -> None:
    result = dry_run(model_path, "--lengths", lengths_path, "--format", "json")

    assert result.exit_code == 0, result.output
    layouts = layouts_of(result)
    assert [(layout["pp_size"], layout["sp_size"]) for layout in layouts] == [(1, 4), (2, 2), (4, 1)]
    assert all(layout["fits"] for layout in layouts)
    best = min(layouts, key=lambda layout: layout["step_s"])
    assert [layout["is_best"] for layout in layouts] == [layout is best for layout in layouts]
    for layout in layouts:
        assert layout["tokens_per_s"] == pytest.approx(sum(LENGTHS) / layout["step_s"])
        assert len(layout["stage_peak_bytes"]) == layout["pp_size"]
        assert max(layout["stage_peak_bytes"]) <= json.loads(result.stdout)["usable_memory_bytes"]


def test_whole_gradients_take_memory_on_every_layout_of_several_ranks(model_path: Path, lengths_path: Path) -> None:
    divided, whole = (
        dry_run(model_path, "--lengths", lengths_path, "--gradient-policy", policy, "--json")
        for policy in ("zero3", "zero2")
    )

    assert json.loads(whole.stdout)["gradient_policy"] == "zero2"
    more_bytes = [
        max(more["stage_peak_bytes"]) - max(less["stage_peak_bytes"])
        for less, more in zip(layouts_of(divided), layouts_of(whole), strict=True)
    ]
    assert [bytes_ > 0 for bytes_ in more_bytes] == [True, True, False], "4, 2 and 1 ranks a stage"
    assert "(zero2)" in dry_run(model_path, "--lengths", lengths_path, "--gradient-policy", "zero2").stdout


def test_the_table_for_people_says_what_it_rests_on(model_path: Path, lengths_path: Path) -> None:
    result = dry_run(model_path, "--lengths", lengths_path)

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "Llama-3.2-1B on h100-1x4: 5 sequences, 5,500 tokens (as given)"
    assert lines[2].split()[:3] == ["pp", "sp", "fits"]
    assert [line.split()[:2] for line in lines[3:6]] == [["1", "4"], ["2", "2"], ["4", "1"]]
    assert sum(line.split()[2:3] == ["best"] for line in lines) == 1
    flat = " ".join(result.stdout.split())
    assert "Analytic, not measured" in flat
    assert "replicas of it are not tried" in flat


def test_the_table_keeps_within_eighty_columns_with_many_stages(
    model_path: Path, lengths_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    result = dry_run(model_path, "--lengths", lengths_path, nodes=2, per_node=8)

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    header = next(line for line in lines if line.startswith("pp"))
    first_column = header.index("peak GiB")
    last_row = next(number for number, line in enumerate(lines) if line.split()[:2] == ["16", "1"])
    peaks = [word for line in lines[last_row : lines.index("", last_row)] for word in line[first_column:].split()]
    assert len(peaks) == 16


def test_made_up_lengths_are_said_to_be_made_up(model_path: Path) -> None:
    result = dry_run(model_path, "--context", 8192, "--sequences", 4, "--format", "json")

    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["sequence_count"] == 4
    assert content["lengths_source"] == "made up: log-normal like files on GitHub, cut at 8,192, one of them full"


def test_a_model_that_fits_nowhere_says_why_of_every_layout_and_fails(lengths_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "Llama-3-70B.json"
    path.write_text(json.dumps(KNOWN_MODELS["Llama-3-70B"].config))

    text = dry_run(path, "--lengths", lengths_path, device="a100-40", per_node=2)
    data = dry_run(path, "--lengths", lengths_path, "--format", "json", device="a100-40", per_node=2)

    assert (text.exit_code, data.exit_code) == (1, 1)
    assert text.stderr == "error: Llama-3-70B on a100-40-1x2 does not fit in any layout\n"
    assert "pp 1 x sp 2: the batch does not fit in memory: stage 0 needs" in text.stdout
    for layout in layouts_of(data):
        assert (layout["fits"], layout["is_best"]) == (False, False)
        assert layout["needed_bytes"] > 0.92 * 40e9
        assert layout["short_stage_index"] < layout["pp_size"]
        assert "are usable" in layout["reason"]


def test_the_result_goes_to_a_file_when_asked(model_path: Path, lengths_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "layouts.json"

    result = dry_run(model_path, "--lengths", lengths_path, "--format", "json", "-o", target)

    assert (result.exit_code, result.stdout) == (0, "")
    assert len(json.loads(target.read_text())["layouts"]) == 3


def test_a_cluster_that_allows_no_layout_says_what_would(model_path: Path, lengths_path: Path) -> None:
    result = dry_run(model_path, "--lengths", lengths_path, per_node=17)

    assert result.exit_code == 1
    assert "error: no layout: stages times ranks must be all 17 devices" in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "error: a dry run needs either --lengths, or --context and --sequences for lengths that are made up"),
        (("--context", 4096), "error: a dry run needs either --lengths, or --context and --sequences"),
        (("--lengths", "-", "--context", 4096), "error: a dry run needs either --lengths, or"),
        (("--lengths", "missing.json"), "error: cannot read missing.json"),
        (("--lengths", "-"), "error: the batch has no sequences"),
        (
            ("--context", 4096, "--sequences", 4, "--policy", "papr"),
            "error: unknown policy 'papr'; did you mean 'paper'?",
        ),
        (("--lengths", "-", "--profile", "p.json"), "error: --profile is out of place: a dry run makes its own"),
        (("--lengths", "-", "--server", "h:1"), "error: --server is out of place: a dry run makes its own"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(model_path: Path, words: tuple[object, ...], sentence: str) -> None:
    result = dry_run(model_path, *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


def test_an_option_that_a_dry_run_needs_is_named(model_path: Path) -> None:
    result = run("--dry-run", "--model", model_path, "--device", "h100", "--nodes", 1)

    assert (result.exit_code, result.stderr) == (2, "error: missing option --devices-per-node\n")


def test_an_unknown_device_is_refused_with_the_nearest_known_one(model_path: Path, lengths_path: Path) -> None:
    result = dry_run(model_path, "--lengths", lengths_path, device="a8000")

    assert (result.exit_code, result.stderr) == (2, "error: unknown device 'a8000'; did you mean 'a800'?\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--lengths", "-"), "error: missing option --profile\n"),
        (("--profile", "PROFILE"), "error: missing option --lengths\n"),
        (
            ("--profile", "PROFILE", "--lengths", "-", "--nodes", 2),
            "error: --nodes is out of place: it belongs to --dry-run\n",
        ),
    ],
)
def test_an_ordinary_plan_needs_its_files_and_takes_no_option_of_a_dry_run(
    words: tuple[object, ...], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))

    result = run(*(path if word == "PROFILE" else word for word in words))

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)
