"""Short notation for slices, chunks and chains."""

from infinipipe_contract.plan import Chunk, Slice


def chunk(*slices: tuple[int, int, int]) -> Chunk:
    """Build a chunk from (sequence, start, length) triples."""
    return Chunk(tuple(Slice(*piece) for piece in slices))


def split_chain(sequence_index: int, *slice_tokens: int) -> tuple[Chunk, ...]:
    """Build the chain of one long sequence from the tokens of its slices."""
    chain, start = [], 0
    for tokens in slice_tokens:
        chain.append(chunk((sequence_index, start, tokens)))
        start += tokens
    return tuple(chain)


def batched_chain(*sequences: tuple[int, int]) -> tuple[Chunk, ...]:
    """Build a chain of one batched chunk from (sequence, length) pairs."""
    return (chunk(*((sequence_index, 0, tokens) for sequence_index, tokens in sequences)),)
