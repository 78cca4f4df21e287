"""Made-up batches, for a dry run of somebody who has no lengths at hand."""

import math
import statistics

LOG_MEAN = 6.6
LOG_DEVIATION = 1.75
"""Log-normal fit to the lengths of files on GitHub in tokens: a median of 735, and a long tail."""


def synthetic_lengths(context_tokens: int, sequence_count: int) -> list[int]:
    """Make up a batch: evenly spaced quantiles of a log-normal distribution cut at the context, the last one full.

    Args:
        context_tokens: Longest sequence, at least 1.
        sequence_count: Sequences, at least 1.

    Returns:
        Lengths in ascending order, each in [1, ``context_tokens``].
    """
    quantile = statistics.NormalDist(LOG_MEAN, LOG_DEVIATION).inv_cdf
    logs = (quantile((index + 0.5) / sequence_count) for index in range(sequence_count - 1))
    return [*(max(1, min(context_tokens, round(math.exp(value)))) for value in logs), context_tokens]
