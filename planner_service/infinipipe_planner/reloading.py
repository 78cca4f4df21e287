"""What is read from files, and read again when they change: certificates and tokens are renewed without a restart."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from infinipipe_planner.secret_files import SecurityError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value made of files.

    Files that are replaced one after the other may not fit each other for a moment: what was read last holds until
    they do.

    Args:
        what: What it is, for the log.
        paths: The files.
        read: Makes the value of them.

    Raises:
        SecurityError: If ``read`` does so the first time.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._seen = self._stamps()
        self._value = read()

    def newest(self) -> T:
        """Return the value, made again if a file has changed."""
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._value = self._read()
                logger.info("%s: read again", self._what)
            except SecurityError as error:
                logger.warning("%s: the one before stays in use: %s", self._what, error)
        return self._value

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
