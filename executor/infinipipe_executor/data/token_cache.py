"""Token cache: the tokens of a corpus, made once a machine and found again without reading the corpus.

Tokens lie in a folder under the fingerprint of everything that decides them, texts included. A note beside them leads
from the files as they lie on disk (names, sizes, times of the last change) to that folder, so a rank that finds a note
reads no text and takes no lock. Without one, the first rank takes a file lock and works; the others wait for the lock,
outside of any collective, and then find the note. Entry point: ``load_tokens``.
"""

import fcntl
import hashlib
import itertools
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.documents import Document, SkippedDocuments, list_files, read_documents
from infinipipe_executor.data.tokenizer import read_tokenizer, train_tokenizer
from infinipipe_executor.errors import DataError

logger = logging.getLogger(__name__)

# Raised when what is stored, or how a text becomes tokens, changes.
CACHE_VERSION = 2

# Documents tokenised at a time: bounds the memory, and is how often progress is shown.
DOCUMENTS_PER_ROUND = 500

# A file that changed this shortly before it was read may change once more without a new time: no note is made.
SETTLED_S = 2.0

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CorpusTokens:
    """The tokens of all documents.

    Attributes:
        token_ids: One document after another.
        offsets: First token of every document, and the end of the last one.
        names: Name of every document.
        highest_id: Largest token id; -1 without any token.
        skipped: Documents left out for their content, by reason.
        fingerprint: Hash of the texts and of what made tokens of them.
    """

    token_ids: Int32Array
    offsets: Int64Array
    names: list[str]
    highest_id: int
    skipped: dict[str, int]
    fingerprint: str


def load_tokens(config: DataConfig, vocab: int) -> CorpusTokens:
    """Find the tokens of a corpus, or read and tokenise it.

    Args:
        config: Section ``[data]``.
        vocab: Entries of a tokenizer that is trained.

    Raises:
        DataError: If the corpus or the tokenizer cannot be read, or the cache cannot be used.
    """
    try:
        config.cache.mkdir(parents=True, exist_ok=True)
        found = _find(config, vocab)
        if found is None:
            with _locked(config.cache / "lock"):
                found = _find(config, vocab) or _make(config, vocab)
        return _read(*found)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cache folder {config.cache} cannot be used: {reason} ([data] cache)") from error


def _find(config: DataConfig, vocab: int) -> tuple[Path, dict[str, int]] | None:
    """Follow the note of the files as they lie on disk to the tokens and the skipped documents; None without one."""
    note = _note_path(config, _source_key(config, vocab))
    if not note.is_file():
        return None
    with _damage_told(note):
        content = json.loads(note.read_text(encoding="utf-8"))
        folder = config.cache / content["tokens"]
        return (folder, content["skipped"]) if folder.is_dir() else None


def _make(config: DataConfig, vocab: int) -> tuple[Path, dict[str, int]]:
    """Read the corpus, tokenise it unless its texts were tokenised before, and leave a note."""
    started_s, key = time.time(), _source_key(config, vocab)
    skipped = SkippedDocuments()
    documents = list(read_documents(config.corpus, config.pattern, config.exclude, skipped))
    folder = config.cache / f"tokens-{_fingerprint(documents, config, vocab)[:16]}"
    if not folder.is_dir():
        _write_tokens(folder, documents, _tokenizer(documents, config, vocab))
    if _last_change_s(config) < started_s - SETTLED_S and _source_key(config, vocab) == key:
        content = {"tokens": folder.name, "skipped": skipped.count_by_reason}
        partial = config.cache / f"partial-note-{os.getpid()}"
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.rename(_note_path(config, key))
    return folder, skipped.count_by_reason


def _read(folder: Path, skipped: dict[str, int]) -> CorpusTokens:
    with _damage_told(folder):
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        without_tokens = {"no token": index["without_tokens"]} if index["without_tokens"] else {}
        return CorpusTokens(
            token_ids=np.load(folder / "token_ids.npy", mmap_mode="r"),
            offsets=np.load(folder / "offsets.npy"),
            names=index["names"],
            highest_id=index["highest_id"],
            skipped=skipped | without_tokens,
            fingerprint=folder.name.removeprefix("tokens-"),
        )


def _note_path(config: DataConfig, source_key: str) -> Path:
    return config.cache / f"note-{source_key[:16]}.json"


def _files(config: DataConfig) -> list[Path]:
    """List the files that decide the tokens."""
    files = list_files(config.corpus, config.pattern, config.exclude)
    return files if config.tokenizer is None else [*files, config.tokenizer]


def _source_key(config: DataConfig, vocab: int) -> str:
    """Hash the files as they lie on disk; any write changes the time of the last change."""
    digest = hashlib.sha256(f"note {CACHE_VERSION} {vocab if config.tokenizer is None else 'given'}".encode())
    for path in _files(config):
        try:
            status = path.stat()
        except OSError:  # gone, or not ours to see: the reader tells
            continue
        line = f"{path} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _last_change_s(config: DataConfig) -> float:
    times_s = [path.stat().st_ctime for path in _files(config) if path.exists()]
    return max(times_s, default=0.0)


def _tokenizer(documents: list[Document], config: DataConfig, vocab: int) -> Tokenizer:
    if config.tokenizer is not None:
        return read_tokenizer(config.tokenizer)
    characters = sum(len(document.text) for document in documents)
    logger.info("training a tokenizer of %d entries on %.1f million characters", vocab, characters / 1e6)
    return train_tokenizer((document.text for document in documents), vocab)


def _write_tokens(folder: Path, documents: list[Document], tokenizer: Tokenizer) -> None:
    """Tokenise into a folder that appears whole or not at all."""
    pieces: list[Int32Array] = []
    names, without_tokens = [], 0
    for first in range(0, len(documents), DOCUMENTS_PER_ROUND):
        round_ = documents[first : first + DOCUMENTS_PER_ROUND]
        encodings = tokenizer.encode_batch([document.text for document in round_], add_special_tokens=False)
        for document, encoding in zip(round_, encodings, strict=True):
            if encoding.ids:
                pieces.append(np.array(encoding.ids, dtype=np.int32))
                names.append(document.name)
            else:
                without_tokens += 1
        logger.info("tokenised %d of %d documents", first + len(round_), len(documents))
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64)])
    highest_id = max((int(piece.max()) for piece in pieces), default=-1)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        np.save(partial / "token_ids.npy", np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32))
        np.save(partial / "offsets.npy", offsets.astype(np.int64))
        index = {"names": names, "without_tokens": without_tokens, "highest_id": highest_id}
        (partial / "index.json").write_text(json.dumps(index), encoding="utf-8")
        tokenizer.save(str(partial / "tokenizer.json"))
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fingerprint(documents: list[Document], config: DataConfig, vocab: int) -> str:
    """Hash the texts and what makes tokens of them."""
    digest = hashlib.sha256(f"tokens {CACHE_VERSION}".encode())
    if config.tokenizer is None:
        digest.update(f"bpe {vocab}".encode())
    else:
        digest.update(read_tokenizer(config.tokenizer).to_str().encode())
    for text in itertools.chain.from_iterable(documents):
        encoded = text.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}; delete it, it is made again ([data] cache)") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; the operating system takes it back from a process that dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
