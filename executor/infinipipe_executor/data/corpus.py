"""Corpus: the token sequences that training draws from.

Reading and tokenising happen once; the tokens lie in the cache folder under the fingerprint of everything that decides
them. All ranks of a machine come here together: the first takes a file lock and works, the others wait for the lock,
outside of any collective, and then find the tokens. Entry point: ``open_corpus``.
"""

import fcntl
import hashlib
import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.batch import TokenSequence, make_sequence
from infinipipe_executor.data.cut import CutReport, cut_documents
from infinipipe_executor.data.documents import Document, SkippedDocuments, read_documents
from infinipipe_executor.data.tokenizer import read_tokenizer, train_tokenizer
from infinipipe_executor.errors import DataError

logger = logging.getLogger(__name__)

# Raised when what is stored, or how a text becomes tokens, changes.
CACHE_VERSION = 1

# Documents tokenised at a time: bounds the memory, and is how often progress is shown.
DOCUMENTS_PER_ROUND = 500

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """What became of the documents of a corpus.

    Attributes:
        document_count: Documents with at least one token.
        skipped: Documents left out for their content, by reason.
        cut: What the limit of the context did.
    """

    document_count: int
    skipped: dict[str, int]
    cut: CutReport

    def __str__(self) -> str:
        """Write one line for people."""
        skipped = ", ".join(f"{count} skipped ({reason})" for reason, count in self.skipped.items())
        return f"corpus: {self.document_count} documents, {skipped or '0 skipped'}; {self.cut}"


class Corpus:
    """Token sequences by index, none longer than the context."""

    def __init__(self, token_ids: Int32Array, starts: Int64Array, lengths: Int64Array, report: CorpusReport) -> None:
        """Set up.

        Args:
            token_ids: Tokens of all documents, one after another.
            starts: First token of every sequence in ``token_ids``.
            lengths: Tokens of every sequence.
            report: What became of the documents.
        """
        self._token_ids = token_ids
        self._starts = starts
        self._lengths = lengths
        self.report = report

    def __len__(self) -> int:
        return len(self._starts)

    def sequence(self, index: int) -> TokenSequence:
        """Return one sequence; its last token has no target."""
        start, length = int(self._starts[index]), int(self._lengths[index])
        return make_sequence(torch.from_numpy(self._token_ids[start : start + length].astype(np.int64)))


def open_corpus(config: DataConfig, vocab: int) -> Corpus:
    """Read, tokenise (or find in the cache) and cut a corpus.

    Args:
        config: Section ``[data]``.
        vocab: Entries of the model's vocabulary.

    Raises:
        DataError: If the corpus is missing or empty, a token lies outside of the vocabulary (names the document), or a
            document is beyond the context under the policy "error".
    """
    token_ids, offsets, names, skipped = _load_tokens(config, vocab)
    document_lengths = np.diff(offsets)
    if not len(document_lengths):
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        looked_for = f"files {config.pattern!r} in " if config.corpus.is_dir() else ""
        raise DataError(
            f"the corpus is empty: no usable document among the {looked_for}{config.corpus}"
            f" (skipped: {reasons or 'none'}) ([data] corpus)"
        )
    _check_vocabulary(token_ids, offsets, names, vocab)
    starts, lengths, cut = cut_documents(offsets, names, config.context_tokens, config.beyond_context)
    report = CorpusReport(len(document_lengths), skipped, cut)
    if not len(starts):
        raise DataError(
            f"no sequence is left: all {len(document_lengths)} documents are longer than {config.context_tokens} tokens"
            " ([data] context_tokens, beyond_context)"
        )
    return Corpus(token_ids, starts, lengths, report)


def _load_tokens(config: DataConfig, vocab: int) -> tuple[Int32Array, Int64Array, list[str], dict[str, int]]:
    """Return tokens of all documents, their offsets, their names, and the skipped ones by reason."""
    skipped = SkippedDocuments()
    try:
        config.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cache folder {config.cache} cannot be made: {error.strerror} ([data] cache)") from error
    with _locked(config.cache / "lock"):
        documents = list(read_documents(config.corpus, config.pattern, config.exclude, skipped))
        folder = config.cache / f"tokens-{_fingerprint(documents, config, vocab)[:16]}"
        if not folder.is_dir():
            _write_tokens(folder, documents, _tokenizer(documents, config, vocab))
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    token_ids = np.load(folder / "token_ids.npy", mmap_mode="r")
    offsets = np.load(folder / "offsets.npy")
    no_token = index["without_tokens"]
    counts = dict(skipped.count_by_reason)
    if no_token:
        counts["no token"] = no_token
    return token_ids, offsets, index["names"], counts


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
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        np.save(partial / "token_ids.npy", np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32))
        np.save(partial / "offsets.npy", offsets.astype(np.int64))
        index = {"names": names, "without_tokens": without_tokens}
        (partial / "index.json").write_text(json.dumps(index), encoding="utf-8")
        tokenizer.save(str(partial / "tokenizer.json"))
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fingerprint(documents: list[Document], config: DataConfig, vocab: int) -> str:
    digest = hashlib.sha256(f"tokens {CACHE_VERSION}".encode())
    if config.tokenizer is None:
        digest.update(f"bpe {vocab}".encode())
    else:
        digest.update(read_tokenizer(config.tokenizer).to_str().encode())
    for text in itertools.chain.from_iterable(documents):
        encoded = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock; the operating system takes it back from a process that dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_vocabulary(token_ids: Int32Array, offsets: Int64Array, names: list[str], vocab: int) -> None:
    outside = np.flatnonzero((token_ids < 0) | (token_ids >= vocab))
    if len(outside):
        first = int(outside[0])
        document = int(np.searchsorted(offsets, first, side="right")) - 1
        raise DataError(
            f"document {names[document]}: token id {token_ids[first]} is outside of the vocabulary of {vocab} entries "
            f"([model] vocab; {len(outside)} such tokens in the corpus)"
        )
