"""Sinks of metrics: a file of JSON lines, TensorBoard, Weights & Biases.

All of them are written by rank 0. Each has a thread and a queue of its own, so that none can hold up the training or
another one. A sink that fails says so once and is left alone from then on. Entry point: ``open_sinks``.
"""

import importlib.util
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from infinipipe_contract.errors import first_line
from infinipipe_executor.config import MetricsConfig
from infinipipe_executor.errors import ConfigError

logger = logging.getLogger(__name__)

# Steps that a sink may lag behind; a step that finds its queue full is not written there.
MAX_WAITING = 1000

# Seconds that all sinks together get at the end of the run to write what they still hold.
CLOSE_S = 10.0


class Writer(Protocol):
    """What a sink writes with; opened and used in its thread only."""

    def write(self, step: int, scalars: Mapping[str, float], /) -> None:
        """Write the numbers of a step so that they outlive this process."""

    def close(self) -> None:
        """Write everything that is still held."""


class Sink:
    """Writes in a thread of its own.

    Args:
        name: Name for messages.
        open_writer: Opens the writer.
    """

    def __init__(self, name: str, open_writer: Callable[[], Writer]) -> None:
        self._name = name
        self._open_writer = open_writer
        self._queue: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(MAX_WAITING)
        self._is_off = False
        self._lost_count = 0
        self._thread = threading.Thread(target=self._work, name=f"metrics-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, scalars: Mapping[str, float]) -> None:
        """Hand over the numbers of a step; never waits and never fails."""
        if self._is_off:
            return
        try:
            self._queue.put_nowait((step, scalars))
        except queue.Full:
            self._lost_count += 1
            if self._lost_count == 1:
                logger.warning("metrics: %s is slow: step %d is not written there, others may follow", self._name, step)

    def begin_close(self) -> None:
        """Let the thread end behind what was handed over."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._is_off = True

    def end_close(self, timeout_s: float) -> None:
        """Wait until everything is written, but not for ever; what is not written is told."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            lost_count = self._lost_count + self._queue.qsize()
            logger.warning(
                "metrics: %s did not finish in time: %d steps or more are missing there", self._name, lost_count
            )
        elif self._lost_count:
            logger.warning("metrics: %d steps are missing in %s", self._lost_count, self._name)

    def _work(self) -> None:
        try:
            writer = self._open_writer()
            while (item := self._queue.get()) is not None:
                writer.write(*item)
            writer.close()
        except BaseException as error:  # metrics never end a run, whatever a library raises
            self._is_off = True
            logger.warning("metrics: %s failed and is off from now on: %s", self._name, first_line(error))


class Sinks:
    """All sinks of a run."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def put(self, step: int, scalars: Mapping[str, float]) -> None:
        """Hand over the numbers of a step; never waits and never fails."""
        for sink in self._sinks:
            sink.put(step, scalars)

    def close(self) -> None:
        """End all sinks; takes ``CLOSE_S`` at most."""
        for sink in self._sinks:
            sink.begin_close()
        end_s = time.monotonic() + CLOSE_S
        for sink in self._sinks:
            sink.end_close(max(0.0, end_s - time.monotonic()))


class JsonLines:
    """One JSON object a step, appended to a file that keeps what earlier starts of the run wrote."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append a line."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files of TensorBoard; steps that are trained again take the place of those of an earlier start."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # takes seconds, and only rank 0 needs it

        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write one event a tag."""
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; every start of the job is a run, grouped under the name of the job."""

    def __init__(self, project: str, job: str) -> None:
        import wandb  # noqa: PLC0415  # an extra

        settings = wandb.Settings(console="off", silent=True)
        self._run: Any = wandb.init(project=project, group=job, settings=settings)
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log a step."""
        self._run.log({"step": step, **scalars})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def check_sinks(config: MetricsConfig) -> None:
    """Refuse a sink whose package is missing, before anything starts.

    Raises:
        ConfigError: Names the extra.
    """
    if config.wandb_project is not None and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"[metrics] wandb_project is {config.wandb_project!r}, but Weights & Biases is not installed: "
            "install infinipipe[wandb], or leave the key out"
        )


def open_sinks(config: MetricsConfig, job: str, first_step: int) -> Sinks:
    """Start the sinks of a run; call it on rank 0.

    Args:
        config: Section ``[metrics]``.
        job: Name of the job.
        first_step: First step that will be written.
    """
    jsonl, tensorboard, project = config.jsonl, config.tensorboard, config.wandb_project
    sinks = []
    if jsonl is not None:
        sinks.append(Sink(f"the file {jsonl}", lambda: JsonLines(jsonl)))
    if tensorboard is not None:
        sinks.append(Sink(f"TensorBoard in {tensorboard}", lambda: TensorBoard(tensorboard, first_step)))
    if project is not None:
        sinks.append(Sink(f"Weights & Biases project {project}", lambda: WeightsAndBiases(project, job)))
    return Sinks(sinks)
