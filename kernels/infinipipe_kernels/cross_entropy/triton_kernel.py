"""Cross-entropy in Triton: one program a row reads the logits twice and writes their gradient once.

Rows may have any length; offsets of rows are int64, for logits pass 2^31 elements at 16384 tokens of a vocabulary of
131072. A target outside the vocabulary gives a loss that is not a number: reading on would read another row.
"""

# Kernels are written in Triton's language, of which type checkers see the Python only.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_WARPS = 8


@triton.jit
def cross_entropy_kernel(
    logits_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    losses_ptr: tl.tensor,
    z_losses_ptr: tl.tensor,
    vocab: tl.tensor,
    scale: tl.tensor,
    z_loss: tl.tensor,
    IGNORE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Replace one row of logits by its gradient and store its cross-entropy and its z-loss, unscaled."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * vocab
    target = tl.load(targets_ptr + row)
    columns = tl.arange(0, BLOCK)
    if target == IGNORE:
        for start in range(0, vocab, BLOCK):
            zeros = tl.zeros([BLOCK], dtype=logits_ptr.dtype.element_ty)
            tl.store(row_ptr + start + columns, zeros, mask=start + columns < vocab)
        tl.store(losses_ptr + row, 0.0)
        tl.store(z_losses_ptr + row, 0.0)
    else:
        # Before any gradient is written over it.
        is_inside = (target >= 0) & (target < vocab)
        target_logit = tl.load(row_ptr + target, mask=is_inside, other=float("nan")).to(tl.float32)
        largest = float("-inf")
        total = 0.0
        for start in range(0, vocab, BLOCK):
            mask = start + columns < vocab
            x = tl.load(row_ptr + start + columns, mask=mask, other=float("-inf")).to(tl.float32)
            larger = tl.maximum(largest, tl.max(x, 0))
            shift = tl.where(larger == float("-inf"), 0.0, larger)  # nothing but -inf so far: no -inf minus -inf
            total = total * tl.exp(largest - shift) + tl.sum(tl.exp(x - shift), 0)
            largest = larger
        lse = largest + tl.log(total)
        tl.store(losses_ptr + row, lse - target_logit)
        tl.store(z_losses_ptr + row, z_loss * lse * lse)
        tl.debug_barrier()
        slope = 1.0 + 2.0 * z_loss * lse
        for start in range(0, vocab, BLOCK):
            mask = start + columns < vocab
            x = tl.load(row_ptr + start + columns, mask=mask, other=float("-inf")).to(tl.float32)
            gradient = slope * tl.exp(x - lse) - tl.where(start + columns == target, 1.0, 0.0)
            tl.store(row_ptr + start + columns, (scale * gradient).to(logits_ptr.dtype.element_ty), mask=mask)


@triton.jit
def multiply_kernel(
    x_ptr: tl.tensor,
    factor_ptr: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Multiply all elements by one number of the device; touches nothing where that is 1."""
    factor = tl.load(factor_ptr)
    if factor != 1.0:
        offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < count, other=0.0).to(tl.float32)
        tl.store(x_ptr + offsets, (x * factor).to(x_ptr.dtype.element_ty), mask=offsets < count)


def replace_by_gradient(
    logits_tv: Tensor, targets_t: Tensor, scale: float, ignore_target: int, z_loss: float
) -> Tensor:
    """Write the gradient over the logits; return cross-entropy and z-loss, fp32 ``[2]``, not waiting for the device."""
    tokens, vocab = logits_tv.shape
    losses_2t = torch.empty(2, tokens, dtype=torch.float32, device=logits_tv.device)
    if tokens:
        cross_entropy_kernel[(tokens,)](
            logits_tv,
            targets_t,
            losses_2t[0],
            losses_2t[1],
            vocab,
            scale,
            z_loss,
            IGNORE=ignore_target,
            BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)),
            num_warps=_WARPS,
            enable_fp_fusion=True,
        )
    return scale * losses_2t.sum(1)


def multiply_(gradient_tv: Tensor, factor: Tensor) -> Tensor:
    """Multiply the gradient of the logits by that of the loss, in place; both stay on the device."""
    count = gradient_tv.numel()
    if count:
        multiply_kernel[(triton.cdiv(count, _BLOCK),)](
            gradient_tv, factor, count, BLOCK=_BLOCK, num_warps=_WARPS, enable_fp_fusion=True
        )
    return gradient_tv
