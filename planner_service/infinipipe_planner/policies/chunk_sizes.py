"""Which chunk sizes policies with fixed-size chunks try."""

_CHUNKS_PER_STAGE = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def chunk_sizes_tokens(total_tokens: int, pp_size: int) -> list[int]:
    """List chunk sizes from one chunk a stage to 64, about half an octave apart, largest first.

    Args:
        total_tokens: Tokens of the batch.
        pp_size: Stages.

    Returns:
        Tokens of a chunk, each at least 1, without repetition.
    """
    sizes = (-(-total_tokens // max(1, round(pp_size * ratio))) for ratio in _CHUNKS_PER_STAGE)
    return sorted(set(sizes), reverse=True)
