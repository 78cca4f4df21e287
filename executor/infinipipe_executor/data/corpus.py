"""Corpus: the token sequences that training draws from. Entry points: ``open_corpus``, ``open_evaluation_corpus``."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infinipipe_contract.model_flops import mean_attended_tokens
from infinipipe_executor.config import DataConfig
from infinipipe_executor.data.batch import TokenSequence, make_sequence
from infinipipe_executor.data.cut import CutReport, cut_documents
from infinipipe_executor.data.documents import BoolArray
from infinipipe_executor.data.learnt import count_targets
from infinipipe_executor.data.megatron import MegatronSource
from infinipipe_executor.data.row_formats import TokenRows, choose_format
from infinipipe_executor.data.sources import find_source
from infinipipe_executor.data.token_cache import CorpusTokens, load_tokens
from infinipipe_executor.data.token_files import SCAN_TOKENS, Int64Array
from infinipipe_executor.errors import DataError


@dataclass(frozen=True, slots=True)
class TargetReport:
    """What is learnt of a corpus of which only some tokens are.

    Attributes:
        target_count: Tokens that are targets, over all sequences.
        dropped_count: Sequences left out because they have no target.
        dropped_tokens: Tokens in them.
    """

    target_count: int
    dropped_count: int
    dropped_tokens: int

    def __str__(self) -> str:
        """Write one line for people."""
        return (
            f"{self.target_count} tokens are targets; {self.dropped_count} sequences without a target left out "
            f"({self.dropped_tokens} tokens)"
        )


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """What became of the documents of a corpus.

    Attributes:
        purpose: "corpus" or "evaluation corpus".
        description: What the corpus is.
        document_count: Documents with at least one token.
        skipped: Documents left out for their content, by reason.
        cut: What the limit of the context did.
        targets: What is learnt; None if every token is.
        single_count: Sequences of one token, which has no target: documents of one, or what "split" left of longer
            ones. Where only some tokens are learnt they are left out, and counted in ``targets``.
    """

    purpose: str
    description: str
    document_count: int
    skipped: dict[str, int]
    cut: CutReport
    targets: TargetReport | None
    single_count: int

    def __str__(self) -> str:
        """Write one line for people."""
        skipped = ", ".join(f"{count} skipped ({reason})" for reason, count in self.skipped.items())
        targets = "" if self.targets is None else f"; {self.targets}"
        single = f"; {self.single_count} sequences of one token have no target" if self.single_count else ""
        return (
            f"{self.purpose}: {self.description}: {self.document_count} documents, {skipped or '0 skipped'}; {self.cut}"
            f"{targets}{single}"
        )


class Corpus:
    """Token sequences by index, none longer than the context.

    Args:
        token_ids: Tokens of all documents, of any type of integers.
        learnt: Which of them may be targets; None for all.
        starts: First token of every sequence in ``token_ids``.
        lengths: Tokens of every sequence.
        report: What became of the documents.
        fingerprint: The same for the same sequences under the same indices.
        tokenizer: The ``tokenizer.json`` in the cache that made the tokens; None where they were tokens already.
    """

    def __init__(
        self,
        token_ids: npt.NDArray[np.integer[Any]],
        learnt: BoolArray | None,
        starts: Int64Array,
        lengths: Int64Array,
        report: CorpusReport,
        fingerprint: str,
        tokenizer: Path | None,
    ) -> None:
        self._token_ids = token_ids
        self._learnt = learnt
        self._starts = starts
        self._lengths = lengths
        self.report = report
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def mean_attended_tokens(self) -> float:
        """Mean number of tokens that a token of the corpus attends to: half of its sequence."""
        return mean_attended_tokens(map(int, self._lengths))

    def sequence(self, index: int) -> TokenSequence:
        """Return one sequence; its last token has no target, nor has one before a token that is not learnt."""
        start = int(self._starts[index])
        end = start + int(self._lengths[index])
        token_ids = torch.from_numpy(self._token_ids[start:end].astype(np.int64))
        learnt = None if self._learnt is None else torch.from_numpy(self._learnt[start:end].copy())
        return make_sequence(token_ids, learnt)


def open_corpus(config: DataConfig, vocab: int) -> Corpus:
    """Read, tokenise (or find in the cache) and cut a corpus.

    Args:
        config: Section ``[data]``.
        vocab: Entries of the model's vocabulary.

    Raises:
        DataError: If the corpus is missing or empty, a token lies outside of the vocabulary (names the document), or a
            document is beyond the context under the policy "error".
    """
    return _open(config, vocab, "corpus")


def open_evaluation_corpus(config: DataConfig, vocab: int, corpus_tokenizer: Path | None) -> Corpus | None:
    """Open the held-out corpus as ``open_corpus`` opens the other, with the same tokenizer.

    Args:
        config: Section ``[data]``.
        vocab: Entries of the model's vocabulary.
        corpus_tokenizer: What made the tokens of the other one, if anything did; taken where none is given.

    Returns:
        None if ``[data] evaluation_corpus`` names none.

    Raises:
        DataError: As ``open_corpus``, if no sequence has a target, or if a tokenizer is needed and none made the tokens
            of the other corpus.
    """
    if config.evaluation_corpus is None:
        return None
    tokenizer = config.tokenizer or corpus_tokenizer
    held_out = config.model_copy(update={"corpus": config.evaluation_corpus, "tokenizer": tokenizer})
    try:
        if tokenizer is None and _needs_tokenizer(held_out):
            raise DataError(
                f"{held_out.corpus} needs a tokenizer, and {config.corpus} holds tokens already: name the one that made"
                " them ([data] tokenizer)"
            )
        corpus = _open(held_out, vocab, "evaluation corpus")
    except DataError as error:
        raise DataError(f"[data] evaluation_corpus: {error}") from error
    if corpus.report.single_count == len(corpus):
        raise DataError(
            f"none of the held-out tokens has a target: all {len(corpus)} sequences are of one token "
            "([data] evaluation_corpus)"
        )
    return corpus


def _needs_tokenizer(config: DataConfig) -> bool:
    source = find_source(config.corpus, config.pattern, config.exclude)
    return not isinstance(source, MegatronSource) and choose_format(source, config.format) != TokenRows.name


def _open(config: DataConfig, vocab: int, purpose: str) -> Corpus:
    tokens = load_tokens(config, vocab)
    if not len(tokens.lengths):
        raise DataError(_describe_empty(config, tokens))
    _check_vocabulary(tokens, vocab)
    starts, lengths, cut = cut_documents(
        tokens.starts, tokens.lengths, tokens.name_of, config.context_tokens, config.beyond_context
    )
    if not len(starts):
        raise DataError(
            f"no sequence is left: all {len(tokens.lengths)} documents are longer than {config.context_tokens} tokens"
            " ([data] context_tokens, beyond_context)"
        )
    targets = None
    if tokens.learnt is not None:
        starts, lengths, targets = _drop_without_targets(tokens.learnt, starts, lengths)
        if not len(starts):
            raise DataError(
                f"no sequence is left: none of {targets.dropped_count} has a token to learn within its first "
                f"{config.context_tokens} ([data] context_tokens, beyond_context)"
            )
    report = CorpusReport(
        purpose=purpose,
        description=tokens.description,
        document_count=len(tokens.lengths),
        skipped=tokens.skipped,
        cut=cut,
        targets=targets,
        single_count=int((lengths == 1).sum()),
    )
    return Corpus(
        tokens.token_ids, tokens.learnt, starts, lengths, report, _fingerprint(tokens, config), tokens.tokenizer
    )


def _fingerprint(tokens: CorpusTokens, config: DataConfig) -> str:
    cut = f"{tokens.fingerprint} {config.context_tokens} {config.beyond_context}"
    return hashlib.sha256(cut.encode()).hexdigest()[:16]


def _drop_without_targets(
    learnt: BoolArray, starts: Int64Array, lengths: Int64Array
) -> tuple[Int64Array, Int64Array, TargetReport]:
    counts = count_targets(learnt, starts, lengths)
    has_target = counts > 0
    dropped_tokens = int(lengths[~has_target].sum())
    report = TargetReport(int(counts.sum()), int((~has_target).sum()), dropped_tokens)
    return starts[has_target], lengths[has_target], report


def _describe_empty(config: DataConfig, tokens: CorpusTokens) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in tokens.skipped.items())
    looked_for = ""
    if config.corpus.is_dir():
        looked_for = "files of a known kind in " if config.pattern is None else f"files {config.pattern!r} in "
    return (
        f"the corpus is empty: no usable document among the {looked_for}{config.corpus}"
        f" (skipped: {reasons or 'none'}) ([data] corpus, pattern)"
    )


def _check_vocabulary(tokens: CorpusTokens, vocab: int) -> None:
    if tokens.highest_id < vocab:
        return
    count, first = 0, -1
    for start in range(0, len(tokens.token_ids), SCAN_TOKENS):
        outside = np.flatnonzero(tokens.token_ids[start : start + SCAN_TOKENS] >= vocab)
        if not count and len(outside):
            first = start + int(outside[0])
        count += len(outside)
    holding = np.flatnonzero((tokens.starts <= first) & (first < tokens.starts + tokens.lengths))
    document = f"document {tokens.name_of(int(holding[0]))}" if len(holding) else f"token {first} of no document"
    raise DataError(
        f"{document}: token id {tokens.token_ids[first]} is outside of the vocabulary of {vocab} entries "
        f"([model] vocab; {count} such tokens in the corpus)"
    )
