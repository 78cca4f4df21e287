"""Attention of a whole chunk, whose slices may have earlier slices of their sequence as context.

All slices attend to themselves in one call. A slice with context then attends to every earlier slice through the
slice cache, block by block, merged by log-sum-exp. Autograd saves the queries, keys, values, output and log-sum-exp of
the chunk itself and nothing of its context, so memory does not grow with the number of slices.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from infinipipe_executor.pipeline.chunk_layout import PlacedSlice
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_executor.pipeline.slice_cache import KeyValue
from infinipipe_kernels.attention import Segments, merge_blocks


class _ChunkAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chunk_pass: ChunkPass,
        stage_layer: int,
    ) -> Tensor:
        _fill_caches(k, v, chunk_pass, stage_layer)
        out, lse = chunk_pass.attention.forward(q, k, v, _own_segments(chunk_pass), is_causal=True)
        for placed in chunk_pass.layout.slices:
            if placed.slice_index:
                _attend_to_context(q, out, lse, placed, chunk_pass, stage_layer)
        # Detached: an output that is saved as such keeps its own graph alive where hooks hold the saved tensors.
        ctx.save_for_backward(q, k, v, out.detach(), lse)
        ctx.chunk_pass, ctx.stage_layer = chunk_pass, stage_layer
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # noqa: ANN401
        (grad,) = grads
        q, k, v, out, lse = ctx.saved_tensors
        chunk_pass: ChunkPass = ctx.chunk_pass
        grad_q, grad_k, grad_v = chunk_pass.attention.backward(
            grad, q, k, v, out, lse, _own_segments(chunk_pass), is_causal=True
        )
        for placed in chunk_pass.layout.slices:
            rows = placed.rows
            if placed.slice_index:
                saved = (grad[rows], q[rows], out[rows], lse[:, rows])
                grad_q[rows] += _differentiate_context(saved, placed, chunk_pass, ctx.stage_layer)
            if placed.slice_count > 1:
                cache = chunk_pass.caches[placed.piece.sequence_index]
                from_later = cache.take_gradient(ctx.stage_layer, placed.slice_index)
                if from_later is not None:  # wider than these gradients: the sum rounds once
                    grad_k[rows] += from_later.key
                    grad_v[rows] += from_later.value
        return grad_q, grad_k, grad_v, None, None


_chunk_attention = cast("Callable[..., Tensor]", _ChunkAttention.apply)


def chunk_attention(q: Tensor, k: Tensor, v: Tensor, chunk_pass: ChunkPass, stage_layer: int) -> Tensor:
    """Attend within every slice and to its context.

    Args:
        q: ``[tokens of the chunk, this rank's query heads, head_dim]``.
        k: ``[tokens of the chunk, this rank's key heads, head_dim]``.
        v: Same shape as ``k``.
        chunk_pass: The chunk; its caches are written in the forward pass and emptied in the backward pass.
        stage_layer: Layer within the stage.

    Returns:
        Same shape as ``q``.
    """
    return _chunk_attention(q, k, v, chunk_pass, stage_layer)


def _own_segments(chunk_pass: ChunkPass) -> Segments:
    return Segments.own([placed.piece.length_tokens for placed in chunk_pass.layout.slices])


def _fill_caches(k: Tensor, v: Tensor, chunk_pass: ChunkPass, stage_layer: int) -> None:
    copies = stage_layer < chunk_pass.recompute_layer_count
    for placed in chunk_pass.layout.slices:
        if placed.slice_count > 1:
            key_value = KeyValue(k[placed.rows], v[placed.rows])
            cache = chunk_pass.caches[placed.piece.sequence_index]
            cache.put(stage_layer, placed.slice_index, key_value, copies=copies)


def _attend_to_context(
    q: Tensor, out: Tensor, lse: Tensor, placed: PlacedSlice, chunk_pass: ChunkPass, stage_layer: int
) -> None:
    """Merge the attention to all earlier slices into ``out`` and ``lse``; rounds once, at the end."""
    rows = placed.rows
    merged, merged_lse = out[rows], lse[:, rows]
    for key, value in chunk_pass.caches[placed.piece.sequence_index].context(stage_layer, placed.slice_index):
        segments = Segments.block(placed.piece.length_tokens, key.shape[0])
        block, block_lse = chunk_pass.attention.forward(q[rows], key, value, segments, is_causal=False)
        merged, merged_lse = merge_blocks(merged, merged_lse, block, block_lse)
    out[rows] = merged
    lse[:, rows] = merged_lse


def _differentiate_context(
    saved: tuple[Tensor, Tensor, Tensor, Tensor], placed: PlacedSlice, chunk_pass: ChunkPass, stage_layer: int
) -> Tensor:
    """Send gradients to the keys and values of all earlier slices; return the share of the queries' gradient."""
    grad, q, out, lse = saved
    cache = chunk_pass.caches[placed.piece.sequence_index]
    total_q = torch.zeros(q.shape, dtype=lse.dtype, device=q.device)
    for index, (key, value) in enumerate(cache.context(stage_layer, placed.slice_index)):
        segments = Segments.block(placed.piece.length_tokens, key.shape[0])
        grad_q, grad_k, grad_v = chunk_pass.attention.backward(grad, q, key, value, out, lse, segments, is_causal=False)
        total_q += grad_q
        cache.add_gradient(stage_layer, index, KeyValue(grad_k, grad_v))
    return total_q
