"""Finding the checkpoint that a run goes on from: the newest one that is whole and belongs to the run."""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from infinipipe_executor.checkpoint_files import (
    RunFacts,
    TornCheckpointError,
    check_files,
    list_checkpoints,
    list_partial,
    read_record,
    step_of,
)
from infinipipe_executor.errors import CheckpointError, ConfigError
from infinipipe_executor.parallel.peers import peers_watched

logger = logging.getLogger(__name__)


def find_newest(folder: Path, group: dist.ProcessGroup) -> tuple[Path, RunFacts] | None:
    """Find the newest whole checkpoint; every rank reads its share of the files to make sure.

    Args:
        folder: Of the checkpoints; made if it is not there.
        group: All ranks, over gloo.

    Returns:
        The checkpoint and what it says about its run, the same on every rank; None if the folder holds none.

    Raises:
        CheckpointError: If it holds checkpoints and none of them is whole, or it cannot be used.
        PeerLostError: If another rank is gone.
    """
    rank = dist.get_rank(group)
    with peers_watched(rank, "the search for a checkpoint"):
        problems = []
        for path in _told_by_first_rank(folder, group):
            problem, facts = _check(path, group)
            if facts is not None:
                return path, facts
            problems.append(f"{path.name}: {problem}")
            if rank == 0:
                logger.warning("checkpoint %s is torn: %s; an earlier one is looked for", path, problem)
    if problems:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole ({'; '.join(problems)}): restore one of them, or move them away to "
            "train from the first step ([checkpoint] folder)"
        )
    return None


def check_fixed(path: Path, facts: RunFacts, fixed: Mapping[str, Any]) -> None:
    """Refuse to go on with other data or another model than those that a checkpoint was made with.

    Args:
        path: The checkpoint, for the message.
        facts: What it says about its run.
        fixed: The same about this run.

    Raises:
        ConfigError: Names every key that differs, with both values.
    """
    changes = [
        f"{key} is {json.dumps(now)}, there it was {json.dumps(facts.fixed[key])}"
        for key, now in fixed.items()
        if key in facts.fixed and facts.fixed[key] != now
    ]
    if changes:
        raise ConfigError(
            f"the run cannot go on from checkpoint {path}: {'; '.join(changes)}; set it back, or start a new run in "
            "another folder ([checkpoint] folder)"
        )


def _told_by_first_rank(folder: Path, group: dist.ProcessGroup) -> Sequence[Path]:
    """Let rank 0 look into the folder; what it finds, or what goes wrong there, all ranks know."""
    answer: list[Any] = [None]
    if dist.get_rank(group) == 0:
        try:
            answer = [_list(folder)]
        except OSError as error:
            answer = [f"{folder} cannot be used: {error.strerror} ([checkpoint] folder)"]
    dist.broadcast_object_list(answer, dist.get_global_rank(group, 0), group=group)
    if isinstance(answer[0], str):
        raise CheckpointError(answer[0])
    paths: Sequence[Path] = answer[0]
    return paths


def _list(folder: Path) -> list[Path]:
    """List the checkpoints, and clear what is left of saves that were cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(0, "it cannot be written")
    for path in list_partial(folder):
        logger.info("%s is left over from a save that was cut short: removed", path)
        shutil.rmtree(path, ignore_errors=True)
    return list_checkpoints(folder)


def _check(path: Path, group: dist.ProcessGroup) -> tuple[str, RunFacts | None]:
    """Check a checkpoint, a share of the files on each rank; all ranks come to the same result."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    problem, facts = "", None
    try:
        facts, files = read_record(path)
        if facts.step != step_of(path):
            raise TornCheckpointError(f"its record is of {facts.step} steps")
        check_files(path, files, sorted(files)[rank::world_size])
    except TornCheckpointError as error:
        problem = str(error)
    problems: list[Any] = [None] * world_size
    dist.all_gather_object(problems, problem, group=group)
    first = next((problem for problem in problems if problem), "")
    return first, None if first else facts
