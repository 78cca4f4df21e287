"""The temporary folder of a Ray instance: gone with its owner, and swept by the next one where the owner was killed.

The owner holds a file lock inside the folder. The kernel drops the lock when the owner dies, whatever it dies of, so a
folder whose lock can be taken belongs to nobody. A process id would not tell: ids are used again, and containers that
share a folder do not share ids.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "infinipipe-ray-"

_NEW_PREFIX = "infinipipe-new-"
_LOCK_NAME = "owner.lock"


class RayDirectory:
    """A locked folder for one Ray instance.

    Attributes:
        path: The folder; short, as it holds Unix sockets.
    """

    def __init__(self, parent: Path) -> None:
        # Under the name that others sweep only once it is locked.
        made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=parent))
        self._lock = os.open(made / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(parent / made.name.replace(_NEW_PREFIX, PREFIX))

    def remove(self) -> None:
        """Remove the folder and let go of it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep_directories(parent: Path) -> list[Path]:
    """Remove the folders of instances whose owner is dead.

    Args:
        parent: Folder that holds them.

    Returns:
        The folders that were removed. What another user owns, or another process sweeps, is left alone.
    """
    swept = []
    for path in sorted(parent.glob(f"{PREFIX}*")):
        with _taken_lock(path) as is_dead:
            if is_dead:
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path)
    return swept


@contextlib.contextmanager
def _taken_lock(path: Path) -> Iterator[bool]:
    """Take a folder's lock for a while, if nobody holds it."""
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
