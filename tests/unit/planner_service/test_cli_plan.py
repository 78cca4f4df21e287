"""`infinipipe plan`: what it reads, what it writes, what it says about mistakes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import plan_from_json, profile_to_json
from infinipipe_contract.validate import validate
from infinipipe_planner.cli import build_app
from support_service import PROFILE, BackgroundService, background_service

LENGTHS = [300, 5, 70, 1]


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


@pytest.fixture
def profile_path(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(profile_to_json(PROFILE))
    return path


@pytest.fixture
def lengths_path(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"lengths": LENGTHS, "comment": "other keys are ignored"}))
    return path


def run(app: typer.Typer, *arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], input=stdin)


def test_json_output_is_a_plan_that_is_valid_for_the_lengths(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--format", "json")

    assert result.exit_code == 0, result.output
    validate(plan_from_json(result.stdout), LENGTHS, PROFILE)


def test_text_output_shows_tables_and_the_grid(app: typer.Typer, profile_path: Path, lengths_path: Path) -> None:
    result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--policy", "paper")

    assert result.exit_code == 0, result.output
    assert "policy" in result.stdout
    assert "  stage 1  F0" in result.stdout
    assert result.stderr == ""


def test_a_budget_bounds_the_search_and_a_senseless_one_is_refused(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    hurried = run(app, "--profile", profile_path, "--lengths", lengths_path, "--budget-s", 0.001, "--format", "json")
    refused = run(app, "--profile", profile_path, "--lengths", lengths_path, "--budget-s", -1)

    assert hurried.exit_code == 0, hurried.output
    validate(plan_from_json(hurried.stdout), LENGTHS, PROFILE)
    assert refused.exit_code == 2
    assert "budget_s is -1.0" in refused.stderr


def test_text_output_keeps_within_eighty_columns_and_has_no_escape_codes(
    app: typer.Typer, profile_path: Path, lengths_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    result = run(app, "--profile", profile_path, "--lengths", lengths_path)

    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    "text", ["[300, 5, 70, 1]", '{"lengths": [300, 5, 70, 1]}', "300\n5\n\n70\n1\n", " [300,\n5,70,1]\n"]
)
def test_lengths_come_from_standard_input_in_any_of_the_three_forms(
    app: typer.Typer, profile_path: Path, text: str
) -> None:
    result = run(app, "--profile", profile_path, "--lengths", "-", "--format", "json", stdin=text)

    assert result.exit_code == 0, result.output
    validate(plan_from_json(result.stdout), LENGTHS, PROFILE)


def test_the_plan_goes_to_a_file_when_asked(
    app: typer.Typer, profile_path: Path, lengths_path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"

    result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--format", "json", "-o", target)

    assert (result.exit_code, result.stdout) == (0, "")
    validate(plan_from_json(target.read_text()), LENGTHS, PROFILE)


def test_a_planner_is_asked_when_its_address_is_given(app: typer.Typer, profile_path: Path, lengths_path: Path) -> None:
    with background_service() as service:
        result = run(
            app, "--profile", profile_path, "--lengths", lengths_path, "--format", "json", "--server", service.address
        )
        assert service.solver.solved_steps == [0]

    assert result.exit_code == 0, result.output
    plan = plan_from_json(result.stdout)
    validate(plan, LENGTHS, PROFILE)
    assert plan.report.solve_s == 0.25


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2,\n oops]", "standard input: not JSON, line 2 column 2: Expecting value"),
        ("[1, true]", "standard input, length 1: true is not a whole number of tokens"),
        ('[1, 2, "3"]', 'standard input, length 2: "3" is not a whole number of tokens'),
        ("[1.5]", "standard input, length 0: 1.5 is not a whole number of tokens"),
        ("[NaN]", "standard input, length 0: NaN is not a whole number of tokens"),
        (f"[{10**30}]", f"standard input, length 0: {10**30} is not a whole number of tokens"),
        ("12\nabc\n", 'standard input, line 2: "abc" is not a whole number of tokens'),
        ("9" * 5000, "is not a whole number of tokens"),
        ('{"length": [1]}', 'standard input: the key "lengths" is missing'),
        ('{"lengths": 5}', "standard input: lengths must be a list of whole numbers, found int"),
        ("", "the batch has no sequences"),
        ("[]", "the batch has no sequences"),
        ("5\n0\n", "sequence 1 has 0 tokens"),
        ("[-7]", "sequence 0 has -7 tokens"),
    ],
)
def test_lengths_that_make_no_sense_are_a_usage_error_with_their_place(
    app: typer.Typer, profile_path: Path, text: str, sentence: str
) -> None:
    result = run(app, "--profile", profile_path, "--lengths", "-", stdin=text)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("where", ["here", "there"])
def test_an_unknown_policy_is_a_usage_error_that_names_the_nearest(
    app: typer.Typer, profile_path: Path, lengths_path: Path, where: str
) -> None:
    with background_service() as service:
        server = () if where == "here" else ("--server", service.address)
        result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--policy", "papr", *server)

    assert result.exit_code == 2
    assert result.stderr == "error: unknown policy 'papr'; did you mean 'paper'?\n"


def test_a_missing_file_is_a_usage_error(app: typer.Typer, profile_path: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"

    for options in (("--profile", missing, "--lengths", "-"), ("--profile", profile_path, "--lengths", missing)):
        result = run(app, *options, stdin="[1]")
        assert result.exit_code == 2
        assert result.stderr == f"error: cannot read {missing}: No such file or directory\n"


def test_a_file_that_is_not_text_is_a_usage_error(app: typer.Typer, profile_path: Path, tmp_path: Path) -> None:
    binary = tmp_path / "lengths.bin"
    binary.write_bytes(b"12\n\xff\xfe")

    result = run(app, "--profile", profile_path, "--lengths", binary)

    assert result.exit_code == 2
    assert result.stderr == f"error: {binary}: not a text file (UTF-8), byte 3\n"


def test_a_profile_with_an_unknown_key_is_a_usage_error_that_names_file_and_nearest(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    content = json.loads(profile_path.read_text())
    content["cluster"]["pp_sizes"] = content["cluster"].pop("pp_size")
    profile_path.write_text(json.dumps(content))

    result = run(app, "--profile", profile_path, "--lengths", lengths_path)

    assert result.exit_code == 2
    assert str(profile_path) in result.stderr
    assert "unknown key 'pp_sizes'; did you mean 'pp_size'?" in result.stderr


def test_a_batch_that_cannot_fit_is_a_failure_that_names_stage_and_bytes(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    content = json.loads(profile_path.read_text())
    content["cluster"]["device_memory_bytes"] = 1_010_000
    profile_path.write_text(json.dumps(content))

    result = run(app, "--profile", profile_path, "--lengths", lengths_path)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: the batch does not fit in memory: stage ")
    assert result.stdout == ""


def test_an_output_that_cannot_be_written_is_a_usage_error(
    app: typer.Typer, profile_path: Path, lengths_path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "no" / "plan.txt"

    result = run(app, "--profile", profile_path, "--lengths", lengths_path, "-o", target)

    assert result.exit_code == 2
    assert result.stderr == f"error: cannot write {target}: No such file or directory\n"


def test_a_planner_that_is_not_there_is_a_failure(app: typer.Typer, profile_path: Path, lengths_path: Path) -> None:
    with background_service() as service:
        address = service.address

    result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--server", address)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no planner at {address}: is `infinipipe serve` running there? (")


def test_a_planner_that_fails_is_a_failure_with_its_sentence(
    app: typer.Typer, profile_path: Path, lengths_path: Path
) -> None:
    with background_service() as service:
        fail_step_0(service)
        result = run(app, "--profile", profile_path, "--lengths", lengths_path, "--server", service.address)

    assert result.exit_code == 1
    assert result.stderr == "error: SolvePlan failed inside the planner (KeyError); its log says more\n"


def fail_step_0(service: BackgroundService) -> None:
    service.solver.errors[0] = KeyError("lost")


@pytest.mark.parametrize(
    ("text", "sentence"), [("[" * 200_000, "nested too deeply"), (f"[{'9' * 5000}]", "more digits than can be read")]
)
def test_lengths_that_break_a_json_reader_are_refused_in_a_sentence(
    app: typer.Typer, profile_path: Path, text: str, sentence: str
) -> None:
    result = run(app, "--profile", profile_path, "--lengths", "-", stdin=text)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: standard input: ")
    assert sentence in result.stderr
