"""The folder of checkpoints on disk: names, what makes one whole, and which ones stay.

::

    step-40/            the run after 40 steps
      .metadata, *.distcp   tensors, by torch.distributed.checkpoint
      model.json            the model, for an export
      profile.json          the cost model of its plans
      tokenizer.json        the tokenizer, if the run trained it
      checkpoint.json       written last: the facts of the run, and every other file by size and SHA-256
    step-60.partial/    being written, or left over from a save that was cut short

A folder gets its name without ``.partial`` once everything in it has reached the disk.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RECORD = "checkpoint.json"
PROFILE = "profile.json"
PARTIAL = ".partial"

# Raised when what a checkpoint holds, or how it is named, changes.
FORMAT = 1

_NAME = re.compile(r"step-\d+")


class TornCheckpointError(Exception):
    """A checkpoint is not whole; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file of a checkpoint must be: its size and the SHA-256 of its content in hexadecimal."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a checkpoint says about the run that wrote it.

    Attributes:
        step: Steps that are done; the next batch is that of this step.
        fixed: What must be the same when the run goes on, by the name of the key as the user knows it.
        layout: Ranks by axis of the mesh.
        device: What it ran on, such as the name of the GPU.
    """

    step: int
    fixed: Mapping[str, Any]
    layout: Mapping[str, int]
    device: str


def partial_path(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a run after ``step`` steps is written first."""
    return folder / f"step-{step}{PARTIAL}"


def step_of(path: Path) -> int:
    """Return the steps that a checkpoint is named after."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """List the finished checkpoints of a folder, the newest first, whole or not; none if there is no folder."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name) and path.is_dir():
                found[step_of(path)] = path
    return [path for _, path in sorted(found.items(), reverse=True)]


def list_partial(folder: Path) -> list[Path]:
    """List what was left over from saves that were cut short."""
    return sorted(folder.glob(f"step-*{PARTIAL}"))


def digest_files(folder: Path, names: Sequence[str]) -> dict[str, FileDigest]:
    """Read files of a folder and return what they are, by name."""
    digests = {}
    for name in names:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[name] = FileDigest(os.fstat(file.fileno()).st_size, digest)
    return digests


def seal(partial: Path, facts: RunFacts, files: Mapping[str, FileDigest]) -> Path:
    """Write the record of a checkpoint and give the folder its final name; a torn one of that name makes way.

    Args:
        partial: The folder, with everything else in it.
        facts: What the record says about the run.
        files: Everything else, by name.

    Returns:
        The checkpoint.
    """
    content = {"format": FORMAT, **asdict(facts), "files": {name: asdict(files[name]) for name in sorted(files)}}
    record = {**content, "sha256": _content_digest(content)}
    write_synced(partial / RECORD, json.dumps(record, indent=1))
    _sync_folder(partial)
    final = partial.with_suffix("")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _sync_folder(final.parent)
    return final


def read_record(path: Path) -> tuple[RunFacts, dict[str, FileDigest]]:
    """Read the record of a checkpoint, and make sure that its files are there in full length.

    Returns:
        What it says about the run, and what its files must be.

    Raises:
        TornCheckpointError: If the record or a file is missing, damaged, or of another length.
    """
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        written = record.pop("sha256")
        if record["format"] != FORMAT:
            raise TornCheckpointError(f"{RECORD} has format {record['format']}, this version reads {FORMAT}")
        if _content_digest(record) != written:
            raise TornCheckpointError(f"{RECORD} does not match its digest")
        facts = RunFacts(record["step"], record["fixed"], record["layout"], record["device"])
        files = {name: FileDigest(**digest) for name, digest in record["files"].items()}
    except OSError as error:
        raise TornCheckpointError(f"{RECORD} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TornCheckpointError(f"{RECORD} is damaged") from error
    for name, digest in files.items():
        _check_size(path / name, digest.size_bytes)
    return facts, files


def check_files(path: Path, files: Mapping[str, FileDigest], names: Sequence[str]) -> None:
    """Read files of a checkpoint and compare them with its record.

    Raises:
        TornCheckpointError: If one differs; names the file.
    """
    for name in names:
        try:
            found = digest_files(path, [name])[name]
        except OSError as error:
            raise TornCheckpointError(f"{name} cannot be read ({error.strerror})") from error
        if found != files[name]:
            raise TornCheckpointError(f"{name} does not match its digest")


def prune(folder: Path, newest_step: int, keep: int) -> None:
    """Delete the checkpoints that are older than the newest ``keep``; ``newest_step`` was saved just now.

    A folder is renamed before it is emptied, so that one that is half gone never looks like a checkpoint.
    """
    older = [path for path in list_checkpoints(folder) if step_of(path) < newest_step]
    for path in older[keep - 1 :]:
        doomed = path.with_name(path.name + PARTIAL)
        path.rename(doomed)
        shutil.rmtree(doomed)


def write_synced(path: Path, text: str) -> None:
    """Write a text file that has reached the disk when this returns."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _check_size(path: Path, size_bytes: int) -> None:
    try:
        found_bytes = path.stat().st_size
    except OSError as error:
        raise TornCheckpointError(f"{path.name} is missing ({error.strerror})") from error
    if found_bytes != size_bytes:
        raise TornCheckpointError(f"{path.name} has {found_bytes} bytes in place of {size_bytes}")


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
