"""`infinipipe trace`: of a job's step, and of a plan file."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infinipipe_contract.codec import plan_to_json, profile_to_json
from infinipipe_contract.plan import ActionKind
from infinipipe_executor.plan_client import ActionMeasurement, PlanClient, RankReport
from infinipipe_planner.cli import build_app
from support_contract import small_profile, two_stage_plan
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, background_service

FORWARD = ActionMeasurement(0, ActionKind.FORWARD, 0, 0.0, 0.5)
BACKWARD = ActionMeasurement(0, ActionKind.BACKWARD, 0, 0.5, 1.5)


@pytest.fixture
def service() -> Iterator[BackgroundService]:
    """A service with a job of three steps: measured, planned, measured by a rank that is confused."""
    with background_service() as running, PlanClient(running.address, call_timeout_s=10) as client:
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        for step in range(3):
            client.submit_batch(step, (5, 7))
            client.fetch_plan(step, timeout_s=10)
        for rank in range(2):
            client.report_step(0, RankReport(rank, rank, 1.5, 1.5, 0.0, actions=(FORWARD, BACKWARD)))
        unknown = dataclasses.replace(FORWARD, chunk_index=4)
        client.report_step(2, RankReport(0, 0, 1.5, 1.5, 0.0, actions=(FORWARD, BACKWARD)))
        client.report_step(2, RankReport(1, 1, 1.5, 1.5, 0.0, actions=(unknown,)))
        yield running


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A plan file and its profile."""
    profile, _, plan = two_stage_plan()
    plan_path, profile_path = tmp_path / "plan.json", tmp_path / "profile.json"
    plan_path.write_text(plan_to_json(plan))
    profile_path.write_text(profile_to_json(profile))
    return plan_path, profile_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["trace", *map(str, arguments)])


def threads(written: str) -> set[str]:
    return {e["args"]["name"] for e in json.loads(written)["traceEvents"] if e["name"] == "thread_name"}


def test_a_measured_step_is_traced_with_all_its_ranks(service: BackgroundService, tmp_path: Path) -> None:
    output = tmp_path / "step.json"

    result = run("train", 0, "-o", output, "--planner", service.address)

    assert (result.exit_code, result.output) == (0, "")
    assert threads(output.read_text()) == {"stage 0", "stage 1", "rank 0 (stage 0)", "rank 1 (stage 1)"}


def test_a_step_that_was_not_measured_is_traced_as_planned_and_says_so(service: BackgroundService) -> None:
    result = run("train", 1, "--planner", service.address)

    assert result.exit_code == 0
    assert threads(result.stdout) == {"stage 0", "stage 1"}
    assert result.stderr == "step 1 of job train: nothing measured, the trace holds the plan alone\n"


def test_a_report_that_does_not_fit_the_plan_is_left_out_aloud(service: BackgroundService) -> None:
    result = run("train", 2, "--planner", service.address)

    assert result.exit_code == 0
    assert threads(result.stdout) == {"stage 0", "stage 1", "rank 0 (stage 0)"}
    assert result.stderr == "step 2: the report of rank 1 does not fit the plan and is left out\n"


def test_an_unknown_step_is_a_failure(service: BackgroundService) -> None:
    result = run("train", 9, "--planner", service.address)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: job train has no step 9; it has 3, from 0 to 2\n"


def test_a_plan_file_is_traced_without_a_planner(files: tuple[Path, Path]) -> None:
    plan, profile = files

    result = run("--plan", plan, "--profile", profile)

    assert result.exit_code == 0
    assert threads(result.stdout) == {"stage 0", "stage 1"}


def test_a_plan_file_is_refused_under_a_profile_that_it_is_not_for(files: tuple[Path, Path]) -> None:
    plan, profile = files
    profile.write_text(profile_to_json(small_profile(pp_size=4)))

    result = run("--plan", plan, "--profile", profile)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "2 stages planned, the profile has 4" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("train",), ("--plan", "p.json"), ("train", "0", "--plan", "p.json"), ("train", "0", "--profile", "p.json")],
)
def test_half_a_subject_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert result.stderr == "error: say what to trace: JOB STEP, or --plan FILE with --profile FILE\n"
