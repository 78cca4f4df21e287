"""Chunks of a fixed number of tokens: what pipelines did before chunks were balanced by work.

Sequences are packed best-fit-decreasing by tokens; what attention costs plays no part.
"""

import bisect
from collections.abc import Iterable, Sequence

from infinipipe_contract.plan import Chunk, Slice
from infinipipe_planner.chunking.chunk_batch import ChunkChain


def split_fixed(lengths_tokens: Sequence[int], chunk_tokens: int) -> list[ChunkChain]:
    """Cut sequences longer than a chunk into slices of equal length and fill up their tails with whole sequences.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        chunk_tokens: Tokens that no chunk exceeds. At least 1.

    Returns:
        The chain of every long sequence, then the batched chunks. Two tails never share a chunk.
    """
    long_slices: list[list[Slice]] = []
    short = []
    for sequence_index, length in enumerate(lengths_tokens):
        if length <= chunk_tokens:
            short.append(Slice(sequence_index, 0, length))
            continue
        starts = range(0, length, chunk_tokens)
        long_slices.append([Slice(sequence_index, start, min(chunk_tokens, length - start)) for start in starts])
    packs = _pack([[slices[-1]] for slices in long_slices], short, chunk_tokens)
    tails, batched = packs[: len(long_slices)], packs[len(long_slices) :]
    chains: list[ChunkChain] = [
        (*(Chunk((piece,)) for piece in slices[:-1]), Chunk(tuple(tail)))
        for slices, tail in zip(long_slices, tails, strict=True)
    ]
    return chains + [(Chunk(tuple(pack)),) for pack in batched]


def pack_whole(lengths_tokens: Sequence[int], chunk_tokens: int) -> list[ChunkChain]:
    """Pack whole sequences; one longer than a chunk gets a chunk of its own, however large.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        chunk_tokens: Tokens that no chunk of two or more sequences exceeds. At least 1.
    """
    whole = [Slice(sequence_index, 0, length) for sequence_index, length in enumerate(lengths_tokens)]
    return [(Chunk(tuple(pack)),) for pack in _pack([], whole, chunk_tokens)]


def _pack(packs: list[list[Slice]], pieces: Iterable[Slice], chunk_tokens: int) -> list[list[Slice]]:
    """Put the longest piece first into the fullest pack that has room; open packs where none has."""
    rooms = sorted((chunk_tokens - pack[0].length_tokens, number) for number, pack in enumerate(packs))
    for piece in sorted(pieces, key=lambda piece: -piece.length_tokens):
        place = bisect.bisect_left(rooms, (piece.length_tokens, -1))
        if place == len(rooms):
            number, room = len(packs), chunk_tokens
            packs.append([])
        else:
            room, number = rooms.pop(place)
        packs[number].append(piece)
        bisect.insort(rooms, (room - piece.length_tokens, number))
    return packs
