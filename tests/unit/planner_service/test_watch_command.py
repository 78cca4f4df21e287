"""`infinipipe watch`: lines in a pipe, a table on a terminal, and its end."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from infinipipe_executor.errors import PlanFailedError
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_planner.cli import build_app
from infinipipe_planner.errors import SolverLostError
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, background_service

COMMAND = (sys.executable, "-c", "from infinipipe_planner.cli import main; main()", "watch", "train")
TIMEOUT_S = 30.0


@pytest.fixture
def service() -> Iterator[BackgroundService]:
    with background_service() as running:
        yield running


@pytest.fixture
def client(service: BackgroundService) -> Iterator[PlanClient]:
    """The executor of a job with a measured step, a failed one and two that are planned ahead."""
    service.solver.errors[1] = SolverLostError("solver process 0 died twice")
    with PlanClient(service.address, call_timeout_s=10) as executor:
        executor.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        for step in (0, 2, 3):
            executor.submit_batch(step, (5, 7))
            executor.fetch_plan(step, timeout_s=10)
        executor.submit_batch(1, (5, 7))
        with pytest.raises(PlanFailedError):
            executor.fetch_plan(1, timeout_s=10)
        report(executor, 0)
        yield executor


def report(executor: PlanClient, step: int) -> None:
    """Both ranks measure a step of 2 seconds, half of it idle on one of them."""
    executor.report_step(step, RankReport(0, 0, 2.0, 2.0, 0.25, loss=5.5))
    executor.report_step(step, RankReport(1, 1, 2.0, 1.0, 0.5, loss=5.5))


def follow(service: BackgroundService) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--planner", service.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def read_lines(watch: subprocess.Popen[str], count: int) -> list[str]:
    assert watch.stdout is not None
    return [watch.stdout.readline().rstrip() for _ in range(count)]


def end(watch: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    watch.send_signal(signal.SIGINT)
    _, errors = watch.communicate(timeout=TIMEOUT_S)
    return watch.returncode, errors


def test_a_pipe_gets_the_steps_as_they_are_then_a_line_a_change(service: BackgroundService, client: PlanClient) -> None:
    watch = follow(service)
    try:
        header, measured, failed, *planned, title = read_lines(watch, 6)
        report(client, 2)
        change, new_title = read_lines(watch, 2)
        left = end(watch)
    finally:
        watch.kill()
        watch.communicate()

    assert header.split()[:2] == ["step", "state"]
    assert measured.split()[:2] == ["0", "measured"]
    assert measured.split()[3] == "2.000"
    assert measured.split()[-3:] == ["25.0%", "0.5", "5.5000"]
    assert failed.endswith("step 1 failed: solver process 0 died twice")
    assert [line.split()[:2] for line in planned] == [["2", "planned"], ["3", "planned"]]
    assert title == "job train, generation 1: 3 of 4 planned, trained to step 0, plans lead by 2"
    assert change.split()[:2] == ["2", "measured"]
    assert new_title == "job train, generation 1: 3 of 4 planned, trained to step 2, plans lead by 1"
    assert max(map(len, [header, measured, *planned, title])) <= 80
    assert left == (0, "")


def test_a_step_counts_as_measured_when_all_ranks_have_reported(service: BackgroundService, client: PlanClient) -> None:
    client.report_step(2, RankReport(0, 0, 2.0, 2.0, 0.25))
    watch = follow(service)
    try:
        half = read_lines(watch, 6)[3]
        client.report_step(2, RankReport(1, 1, 4.0, 1.0, 0.5))
        whole = read_lines(watch, 1)[0]
        left = end(watch)
    finally:
        watch.kill()
        watch.communicate()

    assert half.split()[:2] == ["2", "planned"]
    assert (whole.split()[1], whole.split()[3], whole.split()[-1]) == ("measured", "4.000", "-")
    assert left == (0, "")


def test_a_terminal_gets_a_table_that_is_drawn_in_place(service: BackgroundService, client: PlanClient) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30", "NO_COLOR": "1"}
    watch = subprocess.Popen(
        [*COMMAND, "--planner", service.address], stdout=terminal, stderr=terminal, stdin=terminal, env=environment
    )
    os.close(terminal)
    try:
        before = read_terminal(controller, "plans lead by 2")
        report(client, 2)
        after = read_terminal(controller, "plans lead by 1")
        watch.send_signal(signal.SIGINT)
        code = watch.wait(TIMEOUT_S)
    finally:
        watch.kill()
        watch.wait()
        os.close(controller)

    assert "Ctrl-C ends" in before + after
    assert "\x1b[" in after  # moves the cursor up instead of scrolling
    assert code == 0


def read_terminal(controller: int, until: str) -> str:
    """Read what a program draws until it has drawn some words."""
    drawn, deadline_s = "", time.monotonic() + TIMEOUT_S
    while until not in drawn:
        ready, _, _ = select.select([controller], [], [], max(0.0, deadline_s - time.monotonic()))
        assert ready, f"{until!r} was not drawn: {drawn!r}"
        drawn += os.read(controller, 65536).decode()
    return drawn


def test_a_job_that_is_deleted_ends_the_watch_with_a_sentence(service: BackgroundService) -> None:
    result = CliRunner().invoke(build_app(), ["watch", "gone", "--planner", service.address])

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: there is no job 'gone'\n")
