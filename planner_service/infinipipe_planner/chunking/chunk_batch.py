"""Alg. 1 as a whole: from the lengths of a batch to chains of chunks."""

from collections.abc import Sequence

from infinipipe_contract.plan import Chunk
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.pack import pack_buckets
from infinipipe_planner.chunking.slice_plan import split_slice_plan
from infinipipe_planner.chunking.split import split_sequences
from infinipipe_planner.cost_model.slice_work import SliceWork
from infinipipe_planner.cost_model.token_threshold import token_threshold

ChunkChain = tuple[Chunk, ...]
"""Chunks that belong together: those of one long sequence in token order, or one batched chunk alone."""


def chunk_batch(lengths_tokens: Sequence[int], profile: Profile, slice_count: int) -> list[ChunkChain]:
    """Split long sequences and pack short ones (paper, Alg. 1).

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model and memory.
        slice_count: Slices of the longest sequence (paper: K), in ``[1, max(lengths_tokens)]``.

    Returns:
        The chain of every long sequence, whose last chunk is hybrid where short sequences were packed with its tail
        slice, then the batched chunks.
    """
    work = SliceWork(profile)
    slice_plan = split_slice_plan(max(lengths_tokens), slice_count, work)
    split = split_sequences(lengths_tokens, slice_plan)
    buckets = pack_buckets(
        [slices[-1] for slices in split.long_sequences],
        split.short_sequences,
        work,
        work_threshold_s=work.work_s(0, slice_plan[0]),
        token_threshold=token_threshold(profile, slice_count),
    )
    packed = {bucket.slices[0]: Chunk(tuple(bucket.slices)) for bucket in buckets}
    chains: list[ChunkChain] = [
        (*(Chunk((piece,)) for piece in slices[:-1]), packed.pop(slices[-1])) for slices in split.long_sequences
    ]
    return chains + [(chunk,) for chunk in packed.values()]
