"""Saving checkpoints while training goes on.

A save copies the rank's tensors, which takes a moment, and writes the copy in a thread; all ranks write side by side
(torch.distributed.checkpoint) over a process group of its own. Then rank 0 seals the folder: whoever sees it without
``.partial`` sees all of it. A save that fails costs the save, never the training or an earlier checkpoint.
"""

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from infinipipe_executor.checkpoint_files import (
    FileDigest,
    RunFacts,
    digest_files,
    partial_path,
    prune,
    seal,
)
from infinipipe_executor.checkpoint_state import first_failure, rank_state
from infinipipe_executor.config import CheckpointConfig
from infinipipe_executor.config.section import MIB_BYTES
from infinipipe_executor.parallel.peers import peers_watched

logger = logging.getLogger(__name__)


# A wait of this length for the checkpoint before is worth a line.
LONG_WAIT_S = 1.0

_OF_RANK = re.compile(r"__(\d+)_")


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a save.

    Attributes:
        step: Steps that were done.
        path: The checkpoint; None if it failed.
        problem: Why it failed.
        size_bytes: All its files.
        seconds: From the copy to the seal.
    """

    step: int
    path: Path | None
    problem: str = ""
    size_bytes: int = 0
    seconds: float = 0.0


class _TellingWriter(FileSystemWriter):
    """Fails with the error of the disk, not with what torch's container makes of it."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            raise (cause or error) from None


class Checkpoints:
    """The checkpoints of this run, seen from one rank; every rank makes the same calls.

    Args:
        config: Section ``[checkpoint]``.
        facts: What a record says about the run; its step is that of the save.
        group: All ranks, over gloo; nothing else runs on it.
        write_companions: Writes the other files of a checkpoint into a folder; called on rank 0.
        newest_step: Steps of the checkpoint that the run went on from; -1 without one.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        facts: RunFacts,
        group: dist.ProcessGroup,
        write_companions: Callable[[Path], None],
        newest_step: int = -1,
    ) -> None:
        self._config = config
        self._facts = facts
        self._group = group
        self._rank = dist.get_rank(group)
        self._write_companions = write_companions
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._thread: threading.Thread | None = None
        self._saved: Saved | None = None
        self._error: BaseException | None = None
        self.newest_step = newest_step
        """Steps of the newest checkpoint that this run wrote or went on from; -1 without one."""

    def is_due(self, step: int) -> bool:
        """Tell whether a checkpoint belongs behind ``step`` steps."""
        return step % self._config.every_steps == 0

    def save(self, step: int, stage: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Copy the state behind ``step`` steps and start to write it; waits until an earlier save is over."""
        self.finish()
        started_s = time.monotonic()
        snapshot = self._stager.stage(rank_state(stage, optimizer))
        assert isinstance(snapshot, dict), "staging in this thread gives the copy itself"
        self._thread = threading.Thread(
            target=self._write_in_thread, args=(step, snapshot, started_s), name="checkpoint", daemon=True
        )
        self._thread.start()

    def poll(self) -> None:
        """Tell about a save that is over; never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.finish()

    def finish(self) -> Saved | None:
        """Wait until the save is over, and tell about it.

        Returns:
            What became of it; None if none was running.

        Raises:
            PeerLostError: If another rank went away meanwhile.
        """
        if self._thread is None:
            return None
        started_s = time.monotonic()
        self._thread.join()
        waited_s = time.monotonic() - started_s
        self._thread, saved, self._saved = None, self._saved, None
        if self._error is not None:
            with peers_watched(self._rank, "saving a checkpoint"):
                raise self._error
        assert saved is not None, "the thread left a result or an error"
        self._tell(saved, waited_s)
        return saved

    def _write_in_thread(self, step: int, snapshot: dict[str, Any], started_s: float) -> None:
        try:
            saved = self._write(step, snapshot)
            self._saved = replace(saved, seconds=time.monotonic() - started_s)
        except BaseException as error:  # raised where the thread is waited for
            self._error = error

    def _write(self, step: int, snapshot: dict[str, Any]) -> Saved:
        """Write, look at what was written, seal; a failure on any rank is a failure on all."""
        partial = partial_path(self._config.folder, step)
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        try:
            save(snapshot, storage_writer=_TellingWriter(partial), process_group=self._group)
            problem, files = "", self._digest(partial)
        except CheckpointException as error:
            problem, files = first_failure(error), {}
        except OSError as error:
            problem, files = f"rank {self._rank}: {error.strerror}", {}
        parts = self._gather((problem, files))
        answer: list[Saved | None] = [None]
        if self._rank == 0:
            answer = [self._seal(step, partial, parts)]
        dist.broadcast_object_list(answer, dist.get_global_rank(self._group, 0), group=self._group)
        (saved,) = answer
        assert saved is not None, "rank 0 came to a result"
        return saved

    def _digest(self, partial: Path) -> dict[str, FileDigest]:
        """Digest the files that this rank wrote; rank 0 those of nobody, too."""
        if self._rank == 0:
            self._write_companions(partial)
        names = []
        for path in partial.iterdir():
            match = _OF_RANK.match(path.name)
            if (int(match[1]) if match else 0) == self._rank:
                names.append(path.name)
        return digest_files(partial, names)

    def _seal(self, step: int, partial: Path, parts: Sequence[tuple[str, dict[str, FileDigest]]]) -> Saved:
        problem = next((problem for problem, _ in parts if problem), "")
        files = {name: digest for _, of_rank in parts for name, digest in of_rank.items()}
        path = None
        if not problem:
            try:
                path = seal(partial, replace(self._facts, step=step), files)
            except OSError as error:
                problem = f"rank 0: {error.strerror}"
        if path is None:
            shutil.rmtree(partial, ignore_errors=True)
            return Saved(step, None, problem)
        try:
            prune(self._config.folder, step, self._config.keep)
        except OSError as error:
            logger.warning("an old checkpoint in %s cannot be deleted: %s", self._config.folder, error.strerror)
        return Saved(step, path, size_bytes=sum(digest.size_bytes for digest in files.values()))

    def _tell(self, saved: Saved, waited_s: float) -> None:
        if saved.path is not None:
            self.newest_step = saved.step
        if self._rank != 0:
            return
        if saved.path is None:
            logger.warning(
                "the checkpoint of %d steps could not be saved: %s; earlier ones stay ([checkpoint] folder %s)",
                saved.step,
                saved.problem,
                self._config.folder,
            )
            return
        waited = f"; training waited {waited_s:.1f} s for it" if waited_s > LONG_WAIT_S else ""
        size_mib = saved.size_bytes / MIB_BYTES
        logger.info("checkpoint %s saved: %.1f MiB in %.1f s%s", saved.path, size_mib, saved.seconds, waited)

    def _gather(self, mine: Any) -> list[Any]:  # noqa: ANN401  # whatever can be pickled
        theirs = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(theirs, mine, group=self._group)
        return theirs
