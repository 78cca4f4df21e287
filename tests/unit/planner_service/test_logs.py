"""The planner's log: fields in both formats, and a bound on lines and on files."""

import io
import json
import logging
import time
from pathlib import Path

import pytest

from infinipipe_planner import logs
from infinipipe_planner.job_records import JobId
from infinipipe_planner.logs import LineBudget, LogFileError, about, open_log

JOB = JobId("alice", "run-1")


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("infinipipe_planner.test")


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_of_text_names_job_generation_and_step(tmp_path: Path, logger: logging.Logger) -> None:
    with open_log("text", tmp_path / "log"):
        about(logger, JOB, 2, 7).warning("failed: %s", "no memory")
        logger.info("metrics are shown")
    first, second = lines_of(tmp_path / "log")
    assert first.endswith(" WARNING infinipipe_planner.test: job alice/run-1, generation 2, step 7: failed: no memory")
    assert second.endswith(" INFO infinipipe_planner.test: metrics are shown")


def test_a_line_of_json_has_job_generation_step_and_the_traceback_as_fields(
    tmp_path: Path, logger: logging.Logger
) -> None:
    with open_log("json", tmp_path / "log"):
        about(logger, JOB, 2, 7).info("planned in %.2f s", 0.25)
        try:
            raise ValueError("planted")
        except ValueError as error:
            about(logger, JOB).error("fails", exc_info=error)
    first, second = map(json.loads, lines_of(tmp_path / "log"))
    when = first.pop("time")
    assert time.strptime(when[:19], "%Y-%m-%dT%H:%M:%S")
    assert first == {
        "level": "INFO",
        "logger": "infinipipe_planner.test",
        "message": "planned in 0.25 s",
        "job": "alice/run-1",
        "generation": 2,
        "step": 7,
    }
    assert "generation" not in second
    assert second["traceback"].splitlines()[-1] == "ValueError: planted"


def test_lines_of_one_kind_are_written_so_often_and_then_counted(logger: logging.Logger) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    budget = LineBudget(handler, lines=3, window_s=0.3)
    handler.addFilter(budget)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for number in range(50):
            logger.warning("job %d is put off", number)
        logger.warning("another kind")
        deadline_s = time.monotonic() + 10
        while "left out" not in stream.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        logger.warning("still another kind")
    finally:
        budget.close()
        logger.removeHandler(handler)
    written = stream.getvalue().splitlines()
    assert written[:4] == ["job 0 is put off", "job 1 is put off", "job 2 is put off", "another kind"]
    assert written[4].startswith("47 more lines of this kind were left out (test_logs.py, line ")
    assert written[5:] == ["still another kind"]


def test_what_was_left_out_is_said_at_the_end_too(tmp_path: Path, logger: logging.Logger) -> None:
    with open_log("text", tmp_path / "log"):
        for _ in range(logs.LINES_PER_WINDOW + 4):
            logger.warning("again")
    *written, last = lines_of(tmp_path / "log")
    assert len(written) == logs.LINES_PER_WINDOW
    assert "4 more lines of this kind were left out" in last


def test_a_log_file_is_replaced_before_it_grows_large_and_old_ones_go(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 500)
    with open_log("text", tmp_path / "log"):
        for number in range(logs.LINES_PER_WINDOW):
            logger.info("line %d", number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", *(f"log.{number}" for number in range(1, 6))]
    assert max(file.stat().st_size for file in files) <= 500
    assert lines_of(files[0])[-1].endswith(f"line {logs.LINES_PER_WINDOW - 1}")


def test_a_log_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    sentence = r"cannot write the log .*: No such file or directory \(--log-file\)"
    with pytest.raises(LogFileError, match=sentence), open_log("text", tmp_path / "missing" / "log"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_on_a_full_disk_is_said_once_in_a_sentence_and_the_planner_goes_on(
    logger: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_log("text", Path("/dev/full")):
        for number in range(3):
            logger.warning("line %d", number)

    assert capfd.readouterr().err == (
        "cannot write the log /dev/full: No space left on device; lines are lost until it can be (--log-file)\n"
    )
