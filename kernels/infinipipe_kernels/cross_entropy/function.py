"""Cross-entropy that writes the gradient of the logits over the logits, so that the last stage holds them once.

    loss = scale * sum over rows with a target of (logsumexp(x) - x[target])
    dx = scale * (softmax(x) - onehot(target)), and 0 in rows without a target

Suffixes: t tokens (b of one block), v vocabulary.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from infinipipe_kernels.checks import require_dtype, require_floating, require_shape, statistics_dtype

_BLOCK_ELEMENTS = 1 << 22
"""Logits widened at a time; bounds the temporary memory to a few copies of so many elements."""


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_tv: Tensor, targets_t: Tensor, scale: float, ignore_target: int) -> Tensor:  # noqa: ANN401
        wide = statistics_dtype(logits_tv.dtype)
        loss = torch.zeros((), dtype=wide, device=logits_tv.device)
        block_rows = max(1, _BLOCK_ELEMENTS // max(1, logits_tv.shape[1]))
        blocks = zip(torch.split(logits_tv, block_rows), torch.split(targets_t, block_rows), strict=True)
        for block_bv, target_b in blocks:
            loss += _replace_by_gradient(block_bv, target_b, scale, ignore_target)
        ctx.save_for_backward(logits_tv.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        (gradient_tv,) = ctx.saved_tensors
        return gradient_tv.mul_(grads[0]), None, None, None


_cross_entropy = cast("Callable[..., Tensor]", _CrossEntropy.apply)


def _replace_by_gradient(logits_bv: Tensor, target_b: Tensor, scale: float, ignore_target: int) -> Tensor:
    """Write the gradient over a block of rows and return their loss."""
    wide_bv = logits_bv.to(statistics_dtype(logits_bv.dtype))
    counts_b = target_b != ignore_target
    column_b1 = torch.where(counts_b, target_b, 0)[:, None]
    lse_b1 = torch.logsumexp(wide_bv, dim=-1, keepdim=True)
    loss_b = (lse_b1 - wide_bv.gather(1, column_b1))[:, 0]
    gradient_bv = torch.exp(wide_bv - lse_b1)
    gradient_bv.scatter_add_(1, column_b1, gradient_bv.new_full(column_b1.shape, -1.0))
    # Filled rather than multiplied: a row without a target is exactly 0 whatever its logits are.
    gradient_bv.mul_(scale).masked_fill_(~counts_b[:, None], 0.0)
    logits_bv.copy_(gradient_bv)
    return scale * loss_b.masked_fill(~counts_b, 0.0).sum()


def cross_entropy_(logits_tv: Tensor, targets_t: Tensor, scale: float, ignore_target: int = -100) -> Tensor:
    """Sum the negative log-likelihood of the targets; overwrites the logits.

    The logits are gone afterwards: they hold their gradient. No other operator may have saved them, and the backward
    pass runs once.

    Args:
        logits_tv: ``[tokens, vocabulary]``, floating point, contiguous; no tokens are fine.
        targets_t: int64 ``[tokens]``, each in ``[0, vocabulary)`` or ``ignore_target``.
        scale: Factor of the loss, usually one over the number of targets in the whole batch.
        ignore_target: Target of the rows that do not count; if no row counts, loss and gradient are exactly 0.

    Returns:
        The loss, a scalar of at least fp32.

    Raises:
        ValueError: If a shape or a type does not fit.
    """
    require_floating("logits", logits_tv)
    require_shape("logits", logits_tv, (None, None))
    require_shape("targets", targets_t, (logits_tv.shape[0],))
    require_dtype("targets", targets_t, torch.int64)
    if not logits_tv.is_contiguous():
        raise ValueError("logits must be contiguous, because they are overwritten")
    return _cross_entropy(logits_tv, targets_t, scale, ignore_target)
