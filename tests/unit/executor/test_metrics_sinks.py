"""Metrics reach every sink that is asked for, and no sink can hold up or end a run."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from infinipipe_executor import metrics_sinks
from infinipipe_executor.config import MetricsConfig
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.metrics import step_scalars
from infinipipe_executor.metrics_sinks import Sink, Sinks, check_sinks, open_sinks
from support_executor.metrics import MEASURED, two_pipelines

TRAINING_PAGE = Path(__file__).resolve().parents[3] / "docs" / "training.md"

SCALARS = step_scalars(two_pipelines(), dataclasses.replace(MEASURED, device_peak_flops=1e12))  # with MFU


def documented_tags() -> list[str]:
    _, _, table = TRAINING_PAGE.read_text().partition("| tag | meaning |")
    return re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)


def test_every_documented_tag_is_in_the_file_and_in_tensorboard(tmp_path: Path) -> None:
    tags = documented_tags()
    sinks = open_sinks(MetricsConfig(jsonl=tmp_path / "m" / "metrics.jsonl", tensorboard=tmp_path / "events"), "job", 4)
    for step in (4, 5):
        sinks.put(step, SCALARS | {"loss": step / 2})
    sinks.close()

    rows = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(4, 2.0), (5, 2.5)]
    assert len(tags) == len(SCALARS)
    assert set(rows[0]) == {"step", *tags}
    # In a process of its own: its imports warn.
    script = (
        "import json, sys; from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E;"
        "e = E(sys.argv[1]); e.Reload();"
        "print(json.dumps({t: [(s.step, s.value) for s in e.Scalars(t)] for t in e.Tags()['scalars']}))"
    )
    seen = json.loads(subprocess.check_output([sys.executable, "-c", script, str(tmp_path / "events")], timeout=60))
    assert set(seen) == set(tags)
    assert seen["loss"] == [[4, 2.0], [5, 2.5]]


def test_a_file_keeps_what_an_earlier_start_wrote(tmp_path: Path) -> None:
    for step in (0, 1):
        sinks = open_sinks(MetricsConfig(jsonl=tmp_path / "metrics.jsonl"), "job", step)
        sinks.put(step, {"loss": 1.0})
        sinks.close()

    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [0, 1]


class Failing:
    def write(self, *_: object) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise AssertionError("a sink that failed is left alone")


class Stuck:
    def __init__(self) -> None:
        self.released = threading.Event()

    def write(self, *_: object) -> None:
        self.released.wait(60)

    def close(self) -> None:
        return


class Kept:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, step: int, *_: object) -> None:
        self.steps.append(step)

    def close(self) -> None:
        return


def test_a_sink_that_fails_says_so_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    sinks = Sinks([Sink("the file m", Failing), Sink("kept", lambda: kept)])
    for step in range(50):
        sinks.put(step, SCALARS)
        time.sleep(0.001)
    sinks.close()

    assert kept.steps == list(range(50))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "metrics: the file m failed and is off from now on: [Errno 28] No space left on device"


def test_a_sink_that_is_stuck_holds_up_neither_the_training_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_sinks, "CLOSE_S", 0.2)
    monkeypatch.setattr(metrics_sinks, "MAX_WAITING", 5)
    stuck = Stuck()
    started_s = time.monotonic()
    sinks = Sinks([Sink("stuck", lambda: stuck)])
    for step in range(100):
        sinks.put(step, SCALARS)
    sinks.close()

    assert time.monotonic() - started_s < 5.0
    stuck.released.set()
    messages = [record.message for record in caplog.records]
    assert re.fullmatch(r"metrics: stuck is slow: step \d+ is not written there, others may follow", messages[0])
    # One of them the writer may hold in its hands.
    assert re.fullmatch(r"metrics: stuck did not finish in time: (99|100) steps or more are missing there", messages[1])
    assert len(messages) == 2


WANDB = textwrap.dedent(
    """
    import logging, os, sys, time
    from infinipipe_executor import metrics_sinks
    from infinipipe_executor.config import MetricsConfig
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    metrics_sinks.CLOSE_S = float(sys.argv[1])
    started_s = time.monotonic()
    sinks = metrics_sinks.open_sinks(MetricsConfig(wandb_project="tiny"), "job", 0)
    for step in range(3):
        sinks.put(step, {"loss": 1.0})
    assert time.monotonic() - started_s < 1.0, "it held up the training"
    sinks.close()
    sys.stdout.flush()
    os._exit(0)
    """
)


def run_wandb(folder: Path, close_s: float, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", WANDB, str(close_s)],
        cwd=folder,
        env=os.environ | {"WANDB_DIR": str(folder), "WANDB_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.alone
def test_weights_and_biases_works_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    assert run_wandb(tmp_path, 60.0, WANDB_MODE="offline") == ""

    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert log.stat().st_size > 0


@pytest.mark.alone
def test_weights_and_biases_without_a_network_costs_one_warning(tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    output = run_wandb(tmp_path, 2.0, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="0" * 40)

    (line,) = output.splitlines()
    assert line.startswith("metrics: Weights & Biases project tiny ")


def test_a_sink_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    check_sinks(MetricsConfig())
    with pytest.raises(ConfigError, match=r"\[metrics\] wandb_project is 'tiny', but .* install infinipipe\[wandb\]"):
        check_sinks(MetricsConfig(wandb_project="tiny"))
