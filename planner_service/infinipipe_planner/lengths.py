"""Checks of a batch's lengths, before anything is computed with them."""

from collections.abc import Sequence

from infinipipe_planner.errors import InvalidLengthsError

MAX_SEQUENCES = 131_072
"""Most sequences of one batch."""

MAX_SEQUENCE_TOKENS = 2**31 - 1
"""Longest sequence, whatever context a job asks for."""


def check_lengths(lengths: Sequence[int], *, context_tokens: int | None = None) -> None:
    """Refuse lengths that cannot be planned.

    Args:
        lengths: Tokens of every sequence.
        context_tokens: Longest sequence allowed; None allows ``MAX_SEQUENCE_TOKENS``.

    Raises:
        InvalidLengthsError: With the first bad value, its index and the limit.
    """
    if not lengths:
        raise InvalidLengthsError("the batch has no sequences, it needs at least 1")
    if len(lengths) > MAX_SEQUENCES:
        raise InvalidLengthsError(f"the batch has {len(lengths)} sequences, at most {MAX_SEQUENCES} are allowed")
    for index, length in enumerate(lengths):
        if length < 1:
            raise InvalidLengthsError(f"sequence {index} has {length} tokens, it needs at least 1")
        if context_tokens is not None and length > context_tokens:
            raise InvalidLengthsError(
                f"sequence {index} has {length} tokens, the context allows {context_tokens} (context_tokens)"
            )
        if length > MAX_SEQUENCE_TOKENS:
            raise InvalidLengthsError(
                f"sequence {index} has {length} tokens, at most {MAX_SEQUENCE_TOKENS} are allowed"
            )
