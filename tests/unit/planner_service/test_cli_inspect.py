"""`infinipipe jobs | plans | show`, and the application around the commands."""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from infinipipe_contract.plan import ActionKind
from infinipipe_contract.text import format_bytes
from infinipipe_executor.errors import PlanFailedError
from infinipipe_executor.plan_client import ActionMeasurement, PlanClient, RankReport
from infinipipe_planner import servicer
from infinipipe_planner.cli import build_app
from infinipipe_planner.cli.output import planner_extra
from infinipipe_planner.errors import SolverLostError
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, background_service, plan_of_one_chunk

LONG_NAME = "a-name-of-a-job.that_does-not-fit-in-a-column-of-eighty-characters-whatever-one-does-about-it"


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build_app()


@pytest.fixture
def service() -> Iterator[BackgroundService]:
    """A service with a job of three steps: measured, failed, being planned."""
    with background_service() as running, PlanClient(running.address, call_timeout_s=10) as client:
        running.solver.errors[1] = SolverLostError("solver process 0 died twice")
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))
        client.fetch_plan(0, timeout_s=10)
        measured = (ActionMeasurement(0, ActionKind.FORWARD, 0, 0.0, 0.5),)
        client.report_step(0, RankReport(1, 1, 2.125, 1.0, 0.25, 3 * 2**20, 5.4321, measured))
        client.submit_batch(1, (5, 7))
        with pytest.raises(PlanFailedError):
            client.fetch_plan(1, timeout_s=10)
        running.call(running.solver.hold)
        client.submit_batch(2, (5, 7))
        yield running


def run(app: typer.Typer, service: BackgroundService, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--planner", service.address])


def words(line: str) -> list[str]:
    return line.split()


def test_show_has_the_reports_of_all_ranks_also_when_they_come_in_parts(
    app: typer.Typer, service: BackgroundService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MAX_REPORT_BYTES", 1)
    with PlanClient(service.address, call_timeout_s=10) as client:
        client.join_job("train", 1)
        for rank in (0, 2, 5):
            client.report_step(0, RankReport(rank, 0, 2.0, 1.0, 0.25))

    result = run(app, service, "show", "train", 0, "--json")

    assert [rank["rank"] for rank in json.loads(result.output)["ranks"]] == [0, 1, 2, 5]


def test_jobs_lists_every_job_with_its_generation_shape_and_steps(app: typer.Typer, service: BackgroundService) -> None:
    result = run(app, service, "jobs")

    assert result.exit_code == 0, result.output
    header, row = result.stdout.splitlines()
    assert words(header)[:3] == ["job", "gen", "profile"]
    assert words(row)[:9] == ["train", "1", "two-stages", "2", "x", "1", "4096", "search", "1/3"]


def test_a_long_job_name_is_folded_and_never_cut(
    app: typer.Typer, service: BackgroundService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with PlanClient(service.address) as client:
        client.create_job(LONG_NAME, PROFILE, context_tokens=CONTEXT_TOKENS)

    result = run(app, service, "jobs")

    lines = result.stdout.splitlines()
    first_column = "".join(words(line)[0] for line in lines if line.strip() and not line.startswith(" "))
    assert LONG_NAME in first_column
    assert max(map(len, lines)) <= 80


def test_plans_lists_steps_with_prediction_measurement_and_failure(
    app: typer.Typer, service: BackgroundService
) -> None:
    result = run(app, service, "plans", "train")

    assert result.exit_code == 0, result.output
    header, ready, failed, planning, why = result.stdout.splitlines()
    plan = plan_of_one_chunk((5, 7))
    assert words(header)[:2] == ["step", "state"]
    assert words(ready) == [
        *("0", "ready", "2", "12", "1", "1", "1"),
        *(f"{plan.estimate.makespan_s:.3f}", "2.125", f"{plan.estimate.bubble_ratio:.1%}", "0.25"),
    ]
    assert words(failed) == ["1", "failed", "2", "12", *["-"] * 7]
    assert words(planning) == ["2", "planning", "2", "12", *["-"] * 7]
    assert why == "step 1 failed: solver process 0 died twice"
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_show_prints_the_plan_and_what_the_ranks_measured(app: typer.Typer, service: BackgroundService) -> None:
    result = run(app, service, "show", "train", 0)

    assert result.exit_code == 0, result.output
    assert "  stage 1  F0 B0" in result.stdout
    row = words(result.stdout.splitlines()[-1])
    assert row[:10] == [
        "1",
        "1",
        "2.125",
        "1.000",
        "0.250",
        "3.0",
        "MiB",
        "983.3",
        "KiB",
        f"{3 * 1024 / 983.3 - 1:+.1%}",
    ]
    assert row[10:] == ["5.4321"]


def test_show_prints_memory_over_time_beside_the_peak(
    app: typer.Typer, service: BackgroundService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    lines = run(app, service, "show", "train", 0).stdout.splitlines()

    curves = [line for line in lines if re.match(r"stage \d  \d+  ", line)]
    peak = format_bytes(plan_of_one_chunk((5, 7)).estimate.stages[1].peak_bytes)
    assert len(curves) == 2
    assert curves[1].endswith(f"  {peak}  0%")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (1, "step 1 of job train has no plan: solver process 0 died twice"),
        (2, "step 2 of job train is still being planned"),
        (9, "job train has no step 9; it has 3, from 0 to 2"),
    ],
)
def test_show_says_at_once_why_there_is_no_plan(
    app: typer.Typer, service: BackgroundService, step: int, sentence: str
) -> None:
    result = run(app, service, "show", "train", step)

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {sentence}\n")


@pytest.mark.parametrize("arguments", [("plans", "other"), ("show", "other", "0")])
def test_an_unknown_job_is_a_failure(app: typer.Typer, service: BackgroundService, arguments: tuple[str, ...]) -> None:
    result = run(app, service, *arguments)

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: there is no job 'other'\n")


def test_an_empty_planner_and_an_empty_job_say_so(app: typer.Typer) -> None:
    with background_service() as service, PlanClient(service.address) as client:
        no_jobs = run(app, service, "jobs")
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        no_steps = run(app, service, "plans", "train")
        nothing_to_show = run(app, service, "show", "train", 0)

    assert (no_jobs.exit_code, no_jobs.stderr) == (0, f"the planner at {service.address} has no jobs\n")
    assert (no_steps.exit_code, no_steps.stderr) == (0, "job train has no steps\n")
    assert (nothing_to_show.exit_code, nothing_to_show.stderr) == (1, "error: job train has no steps\n")


def test_the_planners_address_comes_from_the_environment(app: typer.Typer, service: BackgroundService) -> None:
    result = CliRunner().invoke(app, ["jobs"], env={"INFINIPIPE_PLANNER": service.address})

    assert result.exit_code == 0, result.output
    assert "train" in result.stdout


@pytest.mark.parametrize("command", [("jobs",), ("plans", "train"), ("show", "train", "0")])
def test_an_address_that_is_not_host_and_port_is_a_usage_error(app: typer.Typer, command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--planner", "nowhere"])

    assert result.exit_code == 2
    assert result.stderr == "error: address 'nowhere' is not HOST:PORT, for example 127.0.0.1:50051\n"


def test_a_negative_step_is_a_usage_error(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["show", "train", "--", "-1"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "nowhere"), "error: address 'nowhere' is not HOST:PORT, for example 127.0.0.1:50051\n"),
        (("--listen", "127.0.0.1:99999"), "error: address '127.0.0.1:99999': the port must be a number"),
        (("--workers", "-1"), "--workers"),
    ],
)
def test_serve_refuses_settings_that_make_no_sense(app: typer.Typer, arguments: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])

    assert result.exit_code == 2
    assert sentence in result.stderr


def test_serve_on_a_port_in_use_is_a_failure(app: typer.Typer, service: BackgroundService) -> None:
    result = CliRunner().invoke(app, ["serve", "--listen", service.address])

    assert result.exit_code == 1
    assert result.stderr == f"error: cannot listen on {service.address}: another process listens there\n"


def test_the_installed_command_lists_the_commands_of_every_entry_point() -> None:
    command = [sys.executable, "-c", "import sys; from infinipipe_planner.cli import main; sys.exit(main())", "--help"]

    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    for name in ("serve", "plan", "jobs", "plans", "show"):
        assert f" {name} " in shown


def test_the_version_is_the_packages(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert result.stdout == f"infinipipe {importlib.metadata.version('infinipipe')}\n"


def test_looking_at_a_planner_needs_neither_ray_nor_scip() -> None:
    probe = "import json, sys, infinipipe_planner.cli as cli; cli.build_app(); print(json.dumps(sorted(sys.modules)))"

    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True).stdout

    assert not {"ray", "pyscipopt", "torch"} & set(json.loads(shown))


def test_a_missing_part_is_named_with_what_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, planner_extra():
        raise ModuleNotFoundError("No module named 'ray'", name="ray")

    assert left.value.exit_code == 1
    assert "needs ray, which is not installed: pip install 'infinipipe[planner]'" in capsys.readouterr().err


def test_a_missing_module_of_our_own_is_not_blamed_on_the_installation() -> None:
    with pytest.raises(ModuleNotFoundError), planner_extra():
        raise ModuleNotFoundError("No module named 'infinipipe_planner.gone'", name="infinipipe_planner.gone")


def test_delete_makes_the_planner_forget_a_job(app: typer.Typer, service: BackgroundService) -> None:
    assert run(app, service, "delete", "train").exit_code == 0

    again = run(app, service, "delete", "train")

    assert (again.exit_code, again.stderr) == (1, "error: there is no job 'train'\n")


def test_commands_that_ask_a_planner_take_its_address_and_access_from_variables(
    app: typer.Typer, service: BackgroundService, tmp_path: Path
) -> None:
    missing = tmp_path / "ca.pem"
    variables = {"INFINIPIPE_PLANNER": service.address, "INFINIPIPE_TLS_CA": str(missing)}

    for command in (("jobs",), ("plans", "train"), ("show", "train", "0"), ("watch", "train"), ("delete", "train")):
        result = CliRunner().invoke(app, list(command), env=variables)
        assert (result.exit_code, result.stderr) == (
            2,
            f"error: --tls-ca {missing}: cannot be read: No such file or directory\n",
        )
