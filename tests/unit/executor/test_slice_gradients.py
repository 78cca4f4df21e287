"""Gradients of keys and values in bf16: their error does not grow with the number of slices."""

import pytest
import torch
from torch import Tensor

from infinipipe_executor.pipeline.chunk_attention import chunk_attention
from infinipipe_kernels.attention import Segments
from infinipipe_kernels.attention.reference import ReferenceAttention
from support_executor.plans import chunk, cut, make_batch
from support_executor.reference import TINY
from support_executor.single import chunk_passes, plain_stage

SLICE_TOKENS, HEADS, KEY_HEADS, HEAD_DIM = 8, 4, 2, 16

TOLERANCE = 3e-3
"""A rounding to bf16 is off by 1.7e-3 in the mean: each slice's share was rounded once, and so was the sum of all."""


def first_slice_gradients(slice_count: int) -> list[tuple[Tensor, Tensor]]:
    """Gradients of the first slice's keys and values, each in bf16 beside what fp64 makes of the same numbers."""
    tokens = slice_count * SLICE_TOKENS
    batch, stage = make_batch([tokens]), plain_stage(TINY, TINY.layers, 0)
    passes = chunk_passes(stage, [chunk(piece) for piece in cut(0, *[SLICE_TOKENS] * slice_count)], batch)
    shapes = [(tokens, heads, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]
    q, k, v, grad = (torch.randn(shape).bfloat16() for shape in shapes)
    # Later slices look at the first ones, and agree on what they want of them: shares of one sign are the hard case.
    k[:SLICE_TOKENS] += 1
    q += 1
    grad += 1

    leaves = [
        [x[at : at + SLICE_TOKENS].clone().requires_grad_() for x in (q, k, v)] for at in range(0, tokens, SLICE_TOKENS)
    ]
    outs = [chunk_attention(x, y, z, one, 0) for (x, y, z), one in zip(leaves, passes, strict=True)]
    for index in reversed(range(slice_count)):
        torch.autograd.backward(outs[index], grad[index * SLICE_TOKENS : (index + 1) * SLICE_TOKENS])

    exact, everything = ReferenceAttention(), Segments.own([tokens])
    q, k, v, grad = (x.double() for x in (q, k, v, grad))
    out, lse = exact.forward(q, k, v, everything, is_causal=True)
    _, grad_k, grad_v = exact.backward(grad, q, k, v, out, lse, everything, is_causal=True)
    return [
        (got, wanted[:SLICE_TOKENS])
        for got, wanted in ((leaves[0][1].grad, grad_k), (leaves[0][2].grad, grad_v))
        if got is not None
    ]


@pytest.mark.parametrize("slice_count", [5, 19, 64])
def test_shares_of_later_slices_add_up_without_a_loss_that_grows(slice_count: int) -> None:
    pairs = first_slice_gradients(slice_count)

    assert len(pairs) == 2
    for got, wanted in pairs:
        assert got.dtype == torch.bfloat16
        assert torch.linalg.vector_norm(got.double() - wanted) <= TOLERANCE * torch.linalg.vector_norm(wanted)
