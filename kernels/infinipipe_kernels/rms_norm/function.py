"""RMSNorm that saves its input and one number a row.

    y = x * r * w,  r = 1 / sqrt(mean(x^2) + eps)
    dx = r * (g * w - x * r * mean(g * w * x * r)),  dw = sum over rows of g * x * r

Suffixes: t tokens, h width.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from infinipipe_kernels.checks import require_dtype, require_floating, require_shape, statistics_dtype
from infinipipe_kernels.dispatch import runs_triton


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_th: Tensor, weight_h: Tensor, eps: float) -> Tensor:  # noqa: ANN401
        if runs_triton(x_th):
            from infinipipe_kernels.rms_norm import triton_kernel  # noqa: PLC0415

            out_th, inverse_t1 = triton_kernel.forward(x_th, weight_h, eps)
            ctx.save_for_backward(x_th, weight_h, inverse_t1)
            return out_th
        wide_th = x_th.to(statistics_dtype(x_th.dtype))
        inverse_t1 = torch.rsqrt(wide_th.square().mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x_th, weight_h, inverse_t1)
        return ((wide_th * inverse_t1) * weight_h).to(x_th.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        (grad_th,) = grads
        x_th, weight_h, inverse_t1 = ctx.saved_tensors
        if runs_triton(x_th):
            from infinipipe_kernels.rms_norm import triton_kernel  # noqa: PLC0415

            return *triton_kernel.backward(grad_th, x_th, weight_h, inverse_t1), None
        wide_th = grad_th.to(inverse_t1.dtype)
        normed_th = x_th.to(inverse_t1.dtype) * inverse_t1
        grad_weight_h = (wide_th * normed_th).sum(dim=0).to(weight_h.dtype)
        scaled_th = wide_th * weight_h
        projection_t1 = (scaled_th * normed_th).mean(dim=-1, keepdim=True)
        grad_x_th = (inverse_t1 * (scaled_th - normed_th * projection_t1)).to(x_th.dtype)
        return grad_x_th, grad_weight_h, None


_rms_norm = cast("Callable[..., Tensor]", _RmsNorm.apply)


def rms_norm(x_th: Tensor, weight_h: Tensor, eps: float) -> Tensor:
    """Divide every row by its root mean square and scale it.

    Args:
        x_th: ``[tokens, width]``, floating point; no tokens are fine.
        weight_h: ``[width]``, same type.
        eps: Added to the mean square, more than 0.

    Returns:
        ``[tokens, width]``, same type; statistics are taken in at least fp32.

    Raises:
        ValueError: If a shape or a type does not fit.
    """
    require_floating("x", x_th)
    require_shape("x", x_th, (None, None))
    require_shape("weight", weight_h, (x_th.shape[1],))
    require_dtype("weight", weight_h, x_th.dtype)
    return _rms_norm(x_th, weight_h, eps)
