"""Cut: what happens to documents longer than the context; documents and tokens are counted, none vanishes silently."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from infinipipe_executor.errors import DataError

BeyondContext = Literal["truncate", "split", "drop", "error"]


@dataclass(frozen=True, slots=True)
class CutReport:
    """Counts of one cut.

    Attributes:
        policy: What happened to longer documents.
        context_tokens: Longest sequence allowed.
        document_count: Documents before the cut.
        longer_count: Documents beyond the context.
        sequence_count: Sequences that came out.
        kept_tokens: Tokens in them.
        lost_tokens: Tokens that no sequence holds: cut off, or in dropped documents.
    """

    policy: BeyondContext
    context_tokens: int
    document_count: int
    longer_count: int
    sequence_count: int
    kept_tokens: int
    lost_tokens: int

    def __str__(self) -> str:
        """Write one line for people."""
        verb = {"truncate": "truncated", "split": "split", "drop": "dropped", "error": "refused"}[self.policy]
        total = max(1, self.kept_tokens + self.lost_tokens)
        return (
            f"{self.longer_count} longer than {self.context_tokens} tokens, {verb}; {self.sequence_count} sequences, "
            f"{self.kept_tokens} tokens kept, {self.lost_tokens} lost ({self.lost_tokens / total:.1%})"
        )


def cut_documents(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    name_of: Callable[[int], str],
    context_tokens: int,
    policy: BeyondContext,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], CutReport]:
    """Make sequences of documents.

    Args:
        starts: First token of every document.
        lengths: Tokens of every document, at least 1.
        name_of: Names a document.
        context_tokens: Longest sequence allowed.
        policy: "truncate" keeps the first tokens, "split" makes several sequences, "drop" leaves the document out.

    Returns:
        First token and length of every sequence, and the counts.

    Raises:
        DataError: Under "error", naming the first longer document.
    """
    document_count = len(lengths)
    longer = lengths > context_tokens
    total_tokens, longer_count = int(lengths.sum()), int(longer.sum())
    if policy == "error" and longer_count:
        worst = int(np.flatnonzero(longer)[0])
        raise DataError(
            f"document {name_of(worst)} has {lengths[worst]} tokens, [data] context_tokens is {context_tokens} "
            f"({longer_count} of {len(lengths)} documents are longer; [data] beyond_context says what to do)"
        )
    if policy == "truncate":
        lengths = np.minimum(lengths, context_tokens)
    elif policy == "drop":
        starts, lengths = starts[~longer], lengths[~longer]
    elif policy == "split":
        starts, lengths = _split(starts, lengths, context_tokens)
    kept_tokens = int(lengths.sum())
    report = CutReport(
        policy=policy,
        context_tokens=context_tokens,
        document_count=document_count,
        longer_count=longer_count,
        sequence_count=len(starts),
        kept_tokens=kept_tokens,
        lost_tokens=total_tokens - kept_tokens,
    )
    return starts, lengths, report


def _split(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], context_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut every document into parts of the context and a rest."""
    part_counts = -(-lengths // context_tokens)
    document = np.repeat(np.arange(len(lengths)), part_counts)
    part = np.arange(len(document)) - np.repeat(np.cumsum(part_counts) - part_counts, part_counts)
    first = part * context_tokens
    return starts[document] + first, np.minimum(lengths[document] - first, context_tokens)
