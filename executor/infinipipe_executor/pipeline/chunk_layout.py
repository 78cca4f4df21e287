"""Where the slices of a chunk lie, and which of its tokens belong to this rank.

The tokens of a chunk lie one after another, slice by slice; every rank of a stage holds a contiguous share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from infinipipe_contract.plan import Chunk, Pipeline, Slice, slices_by_sequence
from infinipipe_contract.schedule import share_tokens
from infinipipe_executor.data.batch import Batch


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """A slice of a chunk.

    Attributes:
        piece: The slice.
        rows: Its rows within the chunk.
        slice_index: Its place among the slices of its sequence, from 0.
        slice_count: Slices of its sequence.
    """

    piece: Slice
    rows: slice
    slice_index: int
    slice_count: int


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """The layout of one chunk.

    Attributes:
        slices: The slices in token order.
        shares_tokens: Tokens of every rank of the stage, in order; may be 0.
        sp_rank: Place of this rank within the stage.
    """

    slices: tuple[PlacedSlice, ...]
    shares_tokens: tuple[int, ...]
    sp_rank: int

    @property
    def own_rows(self) -> slice:
        """Rows of the chunk that this rank holds."""
        start = sum(self.shares_tokens[: self.sp_rank])
        return slice(start, start + self.shares_tokens[self.sp_rank])

    @property
    def own_token_count(self) -> int:
        """Tokens that this rank holds."""
        return self.shares_tokens[self.sp_rank]

    def own_positions(self) -> Tensor:
        """Position of every token of this rank within its sequence, int64 ``[tokens]``."""
        return self._own([torch.arange(s.piece.start_token, s.piece.end_token) for s in self.slices])

    def own_token_ids(self, batch: Batch) -> Tensor:
        """Token ids of this rank, int64 ``[tokens]``."""
        return self._own([batch.sequences[s.piece.sequence_index].token_ids[_tokens(s.piece)] for s in self.slices])

    def own_target_ids(self, batch: Batch) -> Tensor:
        """Targets of this rank, int64 ``[tokens]``."""
        return self._own([batch.sequences[s.piece.sequence_index].target_ids[_tokens(s.piece)] for s in self.slices])

    def _own(self, per_slice: Sequence[Tensor]) -> Tensor:
        # A copy: a view would keep the other ranks' tokens alive for as long as the chunk is on its way.
        return torch.cat(list(per_slice))[self.own_rows].clone()


def lay_out_pipeline(pipeline: Pipeline, sp_size: int, sp_rank: int) -> list[ChunkLayout]:
    """Lay out every chunk of a pipeline.

    Args:
        pipeline: The pipeline.
        sp_size: Ranks of one stage.
        sp_rank: Place of this rank within its stage.
    """
    order = {sequence: [piece for piece, _ in of] for sequence, of in slices_by_sequence(pipeline.chunks).items()}
    return [
        ChunkLayout(_place(chunk, order), tuple(share_tokens(chunk.token_count, sp_size)), sp_rank)
        for chunk in pipeline.chunks
    ]


def _place(chunk: Chunk, order: dict[int, list[Slice]]) -> tuple[PlacedSlice, ...]:
    ends = list(accumulate(piece.length_tokens for piece in chunk.slices))
    return tuple(
        PlacedSlice(
            piece=piece,
            rows=slice(end - piece.length_tokens, end),
            slice_index=order[piece.sequence_index].index(piece),
            slice_count=len(order[piece.sequence_index]),
        )
        for piece, end in zip(chunk.slices, ends, strict=True)
    )


def _tokens(piece: Slice) -> slice:
    return slice(piece.start_token, piece.end_token)
