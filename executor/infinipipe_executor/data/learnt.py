"""Learnt: which sequences have a target at all, where only some tokens of a corpus may be targets.

A prompt that fills the whole context leaves nothing to learn: such a sequence would cost time and change nothing.
"""

import numpy as np

from infinipipe_executor.data.documents import BoolArray
from infinipipe_executor.data.token_files import SCAN_TOKENS, Int64Array


def count_targets(learnt: BoolArray, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """Count the targets of every sequence; its first token is nobody's target.

    Args:
        learnt: Which tokens may be targets.
        starts: First token of every sequence, rising.
        lengths: Tokens of every sequence, at least 1; no two sequences share a token.
    """
    counts = np.zeros(len(starts), dtype=np.int64)
    ends = starts + lengths
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + SCAN_TOKENS, side="right")))
        before = np.concatenate([[0], np.cumsum(learnt[begin : ends[last - 1]], dtype=np.int64)])
        counts[first:last] = before[ends[first:last] - begin] - before[starts[first:last] + 1 - begin]
        first = last
    return counts
