"""Corpus: the token sequences that training draws from. Entry point: ``open_corpus``."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.batch import TokenSequence, make_sequence
from infinipipe_executor.data.cut import CutReport, cut_documents
from infinipipe_executor.data.token_cache import CorpusTokens, Int32Array, Int64Array, load_tokens
from infinipipe_executor.errors import DataError


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

    def __init__(
        self, token_ids: Int32Array, starts: Int64Array, lengths: Int64Array, report: CorpusReport, fingerprint: str
    ) -> None:
        """Set up.

        Args:
            token_ids: Tokens of all documents, one after another.
            starts: First token of every sequence in ``token_ids``.
            lengths: Tokens of every sequence.
            report: What became of the documents.
            fingerprint: The same for the same sequences under the same indices.
        """
        self._token_ids = token_ids
        self._starts = starts
        self._lengths = lengths
        self.report = report
        self.fingerprint = fingerprint

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
    tokens = load_tokens(config, vocab)
    document_lengths = np.diff(tokens.offsets)
    if not len(document_lengths):
        reasons = ", ".join(f"{count} {reason}" for reason, count in tokens.skipped.items())
        looked_for = f"files {config.pattern!r} in " if config.corpus.is_dir() else ""
        raise DataError(
            f"the corpus is empty: no usable document among the {looked_for}{config.corpus}"
            f" (skipped: {reasons or 'none'}) ([data] corpus)"
        )
    _check_vocabulary(tokens, vocab)
    starts, lengths, cut = cut_documents(tokens.offsets, tokens.names, config.context_tokens, config.beyond_context)
    report = CorpusReport(len(document_lengths), tokens.skipped, cut)
    if not len(starts):
        raise DataError(
            f"no sequence is left: all {len(document_lengths)} documents are longer than {config.context_tokens} tokens"
            " ([data] context_tokens, beyond_context)"
        )
    return Corpus(tokens.token_ids, starts, lengths, report, _fingerprint(tokens, config))


def _fingerprint(tokens: CorpusTokens, config: DataConfig) -> str:
    cut = f"{tokens.fingerprint} {config.context_tokens} {config.beyond_context}"
    return hashlib.sha256(cut.encode()).hexdigest()[:16]


def _check_vocabulary(tokens: CorpusTokens, vocab: int) -> None:
    if tokens.highest_id < vocab:
        return
    outside = np.flatnonzero(tokens.token_ids >= vocab)
    first = int(outside[0])
    document = int(np.searchsorted(tokens.offsets, first, side="right")) - 1
    raise DataError(
        f"document {tokens.names[document]}: token id {tokens.token_ids[first]} is outside of the vocabulary of "
        f"{vocab} entries ([model] vocab; {len(outside)} such tokens in the corpus)"
    )
