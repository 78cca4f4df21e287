"""Sharding of long sequences by the slice plan (paper, III-B; line 2 of Alg. 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.plan import Slice


@dataclass(frozen=True, slots=True)
class SplitSequences:
    """A batch after splitting.

    Attributes:
        long_sequences: Slices of every sequence longer than the first slice of the plan, in token order. The last one
            is the tail slice.
        short_sequences: Every other sequence, whole.
    """

    long_sequences: tuple[tuple[Slice, ...], ...]
    short_sequences: tuple[Slice, ...]


def split_sequences(lengths_tokens: Sequence[int], slice_plan: Sequence[int]) -> SplitSequences:
    """Shard sequences by the slice plan.

    With a slice plan of {8K, 4K, 2K}, a sequence of 13K tokens becomes slices of 8K, 4K and 1K, one of 9K tokens
    slices of 8K and 1K, and one of 8K stays whole.

    Args:
        lengths_tokens: Tokens of every sequence, none above the sum of the slice plan.
        slice_plan: Tokens of every slice of the longest sequence.
    """
    long_sequences, short_sequences = [], []
    for sequence_index, length in enumerate(lengths_tokens):
        if length <= slice_plan[0]:
            short_sequences.append(Slice(sequence_index, 0, length))
            continue
        slices, start = [], 0
        for planned in slice_plan:
            tokens = min(planned, length - start)
            slices.append(Slice(sequence_index, start, tokens))
            start += tokens
            if start == length:
                break
        long_sequences.append(tuple(slices))
    return SplitSequences(tuple(long_sequences), tuple(short_sequences))
