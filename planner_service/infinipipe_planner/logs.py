"""The planner's log: text or JSON, on standard error or in files that rotate, with a bound on how fast it grows.

Entry points: ``open_log`` sets it up, ``about`` gives a logger that names job, generation and step. What is logged too
often is counted, not repeated: a line a minute says how much was left out.
"""

import contextlib
import logging
import logging.handlers
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from infinipipe_planner.config import LogFormat
from infinipipe_planner.errors import PlannerError
from infinipipe_planner.job_records import JobId

LINES_PER_WINDOW = 60
"""Lines of one kind, that is of one place in the code, in a window."""

WINDOW_S = 60.0

FILE_BYTES = 10 * 2**20
FILE_COUNT = 5
"""Files kept besides the one that is written."""

FIELDS = ("job", "generation", "step")
_IS_SUMMARY = "is_summary"


class LogFileError(PlannerError):
    """The log file cannot be written; the message names it and the reason."""


def about(
    logger: logging.Logger, job: JobId, generation: int | None = None, step: int | None = None
) -> "logging.LoggerAdapter[logging.Logger]":
    """Return a logger whose records carry job, generation and step as fields; both formats show them."""
    values = (str(job), generation, step)
    return _Fields(logger, {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None})


@contextlib.contextmanager
def open_log(log_format: LogFormat = "text", file: Path | None = None) -> Iterator[None]:
    """Log warnings of everybody and the progress of the planner.

    Args:
        log_format: "text" for people, "json" for one object a line.
        file: File to write, kept small by rotation; None writes to standard error.

    Raises:
        LogFileError: If the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            handler = _LogFile(file)
        except OSError as error:
            raise LogFileError(f"cannot write the log {file}: {error.strerror} (--log-file)") from None
    handler.setFormatter(_json_formatter() if log_format == "json" else _TextFormatter())
    budget = LineBudget(handler)
    handler.addFilter(budget)
    root, planner = logging.getLogger(), logging.getLogger("infinipipe_planner")
    root.addHandler(handler)
    planner.setLevel(logging.INFO)
    try:
        yield
    finally:
        budget.close()
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # what a full disk did not take
            handler.close()


class _LogFile(logging.handlers.RotatingFileHandler):
    """Files that rotate; lines that cannot be written are lost, which is said once on standard error."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=FILE_BYTES, backupCount=FILE_COUNT)
        self._file = file
        self._has_said_so = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Say once why a line is lost; logging itself would write a traceback for each."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_said_so:
            self._has_said_so = True
            sys.stderr.write(
                f"cannot write the log {self._file}: {error.strerror}; lines are lost until it can be (--log-file)\n"
            )


@dataclass(slots=True)
class _Window:
    """Lines of one kind since the window began; those beyond the bound are counted only."""

    begun_s: float
    count: int = 0
    left_out: int = 0


class LineBudget(logging.Filter):
    """Lets so many lines of a kind through in a window of time, and says how many it did not.

    A kind is a place in the code, so there are only so many of them.

    Args:
        handler: Writes the lines about what was left out.
        lines: Lines of a kind in a window.
        window_s: Length of a window.
    """

    def __init__(self, handler: logging.Handler, lines: int = LINES_PER_WINDOW, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self._handler = handler
        self._lines = lines
        self._window_s = window_s
        self._windows: dict[tuple[str, int], _Window] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is written; called by the handler."""
        if hasattr(record, _IS_SUMMARY):
            return True
        with self._lock:
            now_s = time.monotonic()
            window = self._windows.setdefault((record.pathname, record.lineno), _Window(now_s))
            if window.left_out == 0 and now_s - window.begun_s >= self._window_s:
                window.begun_s, window.count = now_s, 0
            window.count += 1
            if window.count <= self._lines:
                return True
            window.left_out += 1
            if self._timer is None:
                self._timer = threading.Timer(self._window_s, self._tell)
                self._timer.daemon = True
                self._timer.start()
            return False

    def close(self) -> None:
        """Say what was left out since it was last said."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            self._timer = None
            told = {kind: window for kind, window in self._windows.items() if window.left_out}
            for kind in told:
                del self._windows[kind]
        for (path, line), window in told.items():
            record = logging.LogRecord(
                __name__,
                logging.WARNING,
                path,
                line,
                "%d more lines of this kind were left out (%s, line %d): at most %d in %g s are written",
                (window.left_out, Path(path).name, line, self._lines, self._window_s),
                None,
            )
            setattr(record, _IS_SUMMARY, True)
            self._handler.handle(record)


class _Fields(logging.LoggerAdapter[logging.Logger]):
    """Adds its fields to those of a call."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


class _TextFormatter(logging.Formatter):
    """One line of text; the fields stand in front of the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(fields)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{name} {getattr(record, name)}" for name in FIELDS if hasattr(record, name)]
        record.fields = f"{', '.join(fields)}: " if fields else ""
        return super().format(record)


def _json_formatter() -> logging.Formatter:
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "traceback"},
        timestamp="time",
    )
