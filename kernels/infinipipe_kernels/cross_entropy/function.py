"""Cross-entropy that writes the gradient of the logits over the logits, so that the last stage holds them once.

    loss = scale * sum over rows with a target of (lse - x[target] + z * lse^2),  lse = logsumexp(x)
    dx = scale * ((1 + 2 * z * lse) * softmax(x) - onehot(target)), and 0 in rows without a target

Suffixes: t tokens (b of one block), v vocabulary.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from infinipipe_kernels.checks import require_dtype, require_floating, require_shape, statistics_dtype
from infinipipe_kernels.dispatch import runs_triton

_BLOCK_ELEMENTS = 1 << 22
"""Logits widened at a time; bounds the temporary memory to a few copies of so many elements."""


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits_tv: Tensor,
        targets_t: Tensor,
        scale: float,
        ignore_target: int,
        z_loss: float,
        z_sum: Tensor | None,
    ) -> Tensor:
        if runs_triton(logits_tv):
            from infinipipe_kernels.cross_entropy import triton_kernel  # noqa: PLC0415

            parts = triton_kernel.replace_by_gradient(logits_tv, targets_t, scale, ignore_target, z_loss)
        else:
            parts = torch.zeros(2, dtype=statistics_dtype(logits_tv.dtype), device=logits_tv.device)
            block_rows = max(1, _BLOCK_ELEMENTS // max(1, logits_tv.shape[1]))
            blocks = zip(torch.split(logits_tv, block_rows), torch.split(targets_t, block_rows), strict=True)
            for block_bv, target_b in blocks:
                parts += _replace_by_gradient(block_bv, target_b, scale, ignore_target, z_loss)
        ctx.save_for_backward(logits_tv.detach())
        if z_sum is not None:
            z_sum += parts[1]
        return parts.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:  # noqa: ANN401
        (gradient_tv,) = ctx.saved_tensors
        if runs_triton(gradient_tv):
            from infinipipe_kernels.cross_entropy import triton_kernel  # noqa: PLC0415

            return triton_kernel.multiply_(gradient_tv, grads[0]), None, None, None, None, None
        return gradient_tv.mul_(grads[0]), None, None, None, None, None


_cross_entropy = cast("Callable[..., Tensor]", _CrossEntropy.apply)


def _replace_by_gradient(
    logits_bv: Tensor, target_b: Tensor, scale: float, ignore_target: int, z_loss: float
) -> Tensor:
    """Write the gradient over a block of rows and return their cross-entropy and their z-loss, ``[2]``."""
    wide_bv = logits_bv.to(statistics_dtype(logits_bv.dtype))
    counts_b = target_b != ignore_target
    column_b1 = torch.where(counts_b, target_b, 0)[:, None]
    lse_b1 = torch.logsumexp(wide_bv, dim=-1, keepdim=True)
    parts_2b = torch.cat([lse_b1 - wide_bv.gather(1, column_b1), z_loss * lse_b1.square()], dim=1).T
    gradient_bv = torch.exp(wide_bv - lse_b1)
    if z_loss:
        gradient_bv.mul_(1 + 2 * z_loss * lse_b1)
    gradient_bv.scatter_add_(1, column_b1, gradient_bv.new_full(column_b1.shape, -1.0))
    # Filled rather than multiplied: a row without a target is exactly 0 whatever its logits are.
    gradient_bv.mul_(scale).masked_fill_(~counts_b[:, None], 0.0)
    logits_bv.copy_(gradient_bv)
    return scale * parts_2b.masked_fill(~counts_b, 0.0).sum(1)


def cross_entropy_(
    logits_tv: Tensor,
    targets_t: Tensor,
    scale: float,
    ignore_target: int = -100,
    *,
    z_loss: float = 0.0,
    z_sum: Tensor | None = None,
) -> Tensor:
    """Sum the negative log-likelihood of the targets; overwrites the logits.

    With ``z_loss`` every target also adds ``z_loss`` times the square of its row's log-sum-exp, which keeps the logits
    from drifting away together. The loss that is returned is the one that is differentiated, this part included:
    ``z_sum`` tells how much of it that is.

    The logits are gone afterwards: they hold their gradient. No other operator may have saved them, and the backward
    pass runs once.

    Args:
        logits_tv: ``[tokens, vocabulary]``, floating point, contiguous; no tokens are fine.
        targets_t: int64 ``[tokens]``, each in ``[0, vocabulary)`` or ``ignore_target``. Another one is an error on the
            CPU and makes the loss nan on CUDA, where nobody waits for the device to find out.
        scale: Factor of the loss, usually one over the number of targets in the whole batch.
        ignore_target: Target of the rows that do not count; if no row counts, loss and gradient are exactly 0.
        z_loss: Weight of the squared log-sum-exp, at least 0.
        z_sum: Scalar to which the part of the loss that ``z_loss`` makes is added; None to tell nobody.

    Returns:
        The loss, a scalar of at least fp32.

    Raises:
        ValueError: If a shape or a type does not fit, or the weight is negative or not a number.
    """
    require_floating("logits", logits_tv)
    require_shape("logits", logits_tv, (None, None))
    require_shape("targets", targets_t, (logits_tv.shape[0],))
    require_dtype("targets", targets_t, torch.int64)
    if not logits_tv.is_contiguous():
        raise ValueError("logits must be contiguous, because they are overwritten")
    if not z_loss >= 0:
        raise ValueError(f"z_loss is {z_loss}, it must be at least 0")
    return _cross_entropy(logits_tv, targets_t, scale, ignore_target, z_loss, z_sum)
