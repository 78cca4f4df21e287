"""Token cache: the tokens of a corpus, made once a machine and found again without reading the corpus.

Tokens lie in a folder under the fingerprint of everything that decides them, the files' bytes included. A note beside
them leads from the files as they lie on disk (names, sizes, times of the last change) to that folder, so a rank that
finds a note reads no file and takes no lock. Without one, the first rank takes a file lock and works; the others wait
for the lock, outside of any collective, and then find the note. Entry point: ``load_tokens``.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.documents import BoolArray, Source, document_name
from infinipipe_executor.data.megatron import MegatronSource, read_megatron
from infinipipe_executor.data.prepare import write_tokens
from infinipipe_executor.data.sources import find_source
from infinipipe_executor.data.token_files import SCAN_TOKENS, Int64Array, read_token_files
from infinipipe_executor.data.tokenizer_files import TOKENIZER_FILE, tokenizer_files
from infinipipe_executor.errors import DataError

# Raised when what is stored, or how a document becomes tokens, changes.
CACHE_VERSION = 5

# A file that changed this shortly before it was read may change once more without a new time: no note is made.
SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class CorpusTokens:
    """The tokens of all documents.

    Attributes:
        description: What the corpus is, for people.
        token_ids: Tokens as they are stored, mapped.
        starts: First token of every document.
        lengths: Tokens of every document, at least 1.
        name_of: Names a document.
        learnt: Which tokens may be targets; None for all.
        highest_id: Largest token id; -1 without any token.
        skipped: Documents left out for their content, by reason.
        tokenizer: The tokenizer that made the tokens; None where they were tokens already.
        fingerprint: The same for the same tokens in the same documents.
    """

    description: str
    token_ids: npt.NDArray[np.integer[Any]]
    starts: Int64Array
    lengths: Int64Array
    name_of: Callable[[int], str]
    learnt: BoolArray | None
    highest_id: int
    skipped: dict[str, int]
    tokenizer: Path | None
    fingerprint: str


def load_tokens(config: DataConfig, vocab: int) -> CorpusTokens:
    """Find the tokens of a corpus, or read and tokenise it.

    Args:
        config: Section ``[data]``.
        vocab: Entries of a tokenizer that is trained.

    Raises:
        DataError: If the corpus or the tokenizer cannot be read, or the cache cannot be used.
    """
    source = find_source(config.corpus, config.pattern, config.exclude)
    try:
        config.cache.mkdir(parents=True, exist_ok=True)
        if isinstance(source, MegatronSource):
            return _load_megatron(source, config)
        found = _find(source, config, vocab)
        if found is None:
            with _locked(config.cache / "lock"):
                found = _find(source, config, vocab) or _make(source, config, vocab)
        return _read(found)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cache folder {config.cache} cannot be used: {reason} ([data] cache)") from error


def _find(source: Source, config: DataConfig, vocab: int) -> Path | None:
    """Follow the note of the files as they lie on disk to the tokens; None without one."""
    note = _read_note(_note_path(config, _source_key(_files(source, config), config, vocab)))
    if note is None:
        return None
    folder = config.cache / str(note["tokens"])
    return folder if folder.is_dir() else None


def _make(source: Source, config: DataConfig, vocab: int) -> Path:
    """Tokenise the corpus unless the same files were tokenised before, and leave a note."""
    started_s = time.time()
    key = _source_key(_files(source, config), config, vocab)

    def check_unchanged() -> None:
        if _source_key(_files(source, config), config, vocab) != key:
            raise DataError(f"corpus {config.corpus} changed while it was read; start again ([data] corpus)")

    folder = config.cache / f"tokens-{_fingerprint(source, config, vocab)[:16]}"
    if not folder.is_dir():
        write_tokens(folder, source, config, vocab, check_unchanged)
    _write_note(config, key, _files(source, config), started_s, {"tokens": folder.name})
    return folder


def _read(folder: Path) -> CorpusTokens:
    with _damage_told(folder):
        files = read_token_files(folder)
    starts = np.concatenate([[0], files.ends[:-1]]) if len(files.ends) else np.empty(0, dtype=np.int64)
    tokenizer = folder / TOKENIZER_FILE
    return CorpusTokens(
        description=files.index.description,
        token_ids=files.token_ids,
        starts=starts,
        lengths=files.ends - starts,
        name_of=files.name_of,
        learnt=files.learnt,
        highest_id=files.index.highest_id,
        skipped=files.index.skipped,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        fingerprint=folder.name.removeprefix("tokens-"),
    )


def _load_megatron(source: MegatronSource, config: DataConfig) -> CorpusTokens:
    """Map tokens that need no work but a look at all of them, whose results a note keeps."""
    tokens = read_megatron(source)
    files = [source.index_path, source.tokens_path]
    started_s, key = time.time(), _source_key(files, config, 0)
    note = _read_note(_note_path(config, key))
    if note is None:
        with _locked(config.cache / "lock"):
            note = _read_note(_note_path(config, key)) or _scan(tokens.token_ids, source.index_path)
            _write_note(config, key, files, started_s, note)
    if note["lowest_id"] < 0:
        raise DataError(f"{source.tokens_path} holds the negative token id {note['lowest_id']} ([data] corpus)")
    return CorpusTokens(
        description=f"Megatron index, {tokens.token_ids.dtype}",
        token_ids=tokens.token_ids,
        starts=tokens.starts,
        lengths=tokens.lengths,
        name_of=lambda document: document_name(source.prefix.name, int(tokens.numbers[document])),
        learnt=None,
        highest_id=note["highest_id"],
        skipped={"empty": tokens.empty_count} if tokens.empty_count else {},
        tokenizer=None,
        fingerprint=note["sha256"],
    )


def _scan(token_ids: npt.NDArray[np.integer[Any]], index_path: Path) -> dict[str, Any]:
    """Find the lowest (at most 0) and the highest token id (-1 without any token), and hash tokens and documents."""
    lowest, highest = 0, -1
    digest = hashlib.sha256(index_path.read_bytes())
    for start in range(0, len(token_ids), SCAN_TOKENS):
        part = token_ids[start : start + SCAN_TOKENS]
        lowest, highest = min(lowest, int(part.min())), max(highest, int(part.max()))
        digest.update(part.tobytes())
    return {"lowest_id": lowest, "highest_id": highest, "sha256": digest.hexdigest()}


def _files(source: Source, config: DataConfig) -> Iterator[Path]:
    """Name the files that decide the tokens, one after another: there may be millions."""
    yield from (source.root / file for file in source.files)
    if config.tokenizer is not None:
        yield from tokenizer_files(config.tokenizer)


def _settings(config: DataConfig, vocab: int) -> str:
    """Write down what decides the tokens beside the files."""
    tokenizer = f"bpe {vocab}" if config.tokenizer is None else "given"
    return f"tokens {CACHE_VERSION} {tokenizer} {config.format!r} {config.end_token!r}"


def _source_key(files: Iterable[Path], config: DataConfig, vocab: int) -> str:
    """Hash the files as they lie on disk; any write changes the time of the last change."""
    digest = hashlib.sha256(f"note {_settings(config, vocab)}".encode())
    for path in files:
        try:
            status = path.stat()
        except OSError:  # gone, or not ours to see: the reader tells
            continue
        line = f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _fingerprint(source: Source, config: DataConfig, vocab: int) -> str:
    """Hash the files' bytes and whatever else decides the tokens and the names of documents."""
    digest = hashlib.sha256(f"{source.kind} {_settings(config, vocab)}\n".encode())
    for path in _files(source, config):
        name = path.relative_to(source.root) if path.is_relative_to(source.root) else path.name
        digest.update(os.fsencode(name) + b"\0" + _file_digest(path))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:  # the reader tells
        return f"unreadable: {error.strerror}".encode()


def _note_path(config: DataConfig, source_key: str) -> Path:
    return config.cache / f"note-{source_key[:16]}.json"


def _read_note(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    with _damage_told(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _write_note(config: DataConfig, key: str, files: Iterable[Path], started_s: float, content: dict[str, Any]) -> None:
    """Leave a note for the files as they were, unless they could have changed since without a new time."""
    last_change_s = max((path.stat().st_ctime for path in files if path.exists()), default=0.0)
    if last_change_s >= started_s - SETTLED_S:
        return
    partial = config.cache / f"partial-note-{os.getpid()}"
    partial.write_text(json.dumps(content), encoding="utf-8")
    partial.rename(_note_path(config, key))


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, EOFError, FileNotFoundError) as error:
        raise DataError(f"{path} is damaged: {error}; delete it, it is made again ([data] cache)") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; the operating system takes it back from a process that dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
