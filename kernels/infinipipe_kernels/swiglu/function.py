"""SwiGLU that saves its two inputs and nothing in between.

    y = g * s * u,  s = sigmoid(g)
    dg = dy * u * s * (1 + g * (1 - s)),  du = dy * g * s

Suffixes: t tokens, f width.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.checks import require_dtype, require_floating, require_shape, statistics_dtype
from infinipipe_kernels.dispatch import runs_triton


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_tf: Tensor, up_tf: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(gate_tf, up_tf)
        if runs_triton(gate_tf):
            from infinipipe_kernels.swiglu import triton_kernel  # noqa: PLC0415

            return triton_kernel.forward(gate_tf, up_tf)
        wide = statistics_dtype(gate_tf.dtype)
        return functional.silu(gate_tf.to(wide)).mul_(up_tf).to(gate_tf.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        (grad_tf,) = grads
        gate_tf, up_tf = ctx.saved_tensors
        if runs_triton(gate_tf):
            from infinipipe_kernels.swiglu import triton_kernel  # noqa: PLC0415

            return triton_kernel.backward(grad_tf, gate_tf, up_tf)
        wide = statistics_dtype(gate_tf.dtype)
        wide_gate_tf = gate_tf.to(wide)
        grad_up_tf = functional.silu(wide_gate_tf).mul_(grad_tf).to(up_tf.dtype)
        # Torch's own: one pass over memory for the slope, where written out it takes six.
        grad_gate_tf: Tensor = torch.ops.aten.silu_backward(grad_tf.to(wide) * up_tf, wide_gate_tf)
        return grad_gate_tf.to(gate_tf.dtype), grad_up_tf


_swiglu = cast("Callable[..., Tensor]", _SwiGlu.apply)


def swiglu(gate_tf: Tensor, up_tf: Tensor) -> Tensor:
    """Multiply ``silu(gate)`` with ``up``.

    Args:
        gate_tf: ``[tokens, width]``, floating point; no tokens are fine.
        up_tf: ``[tokens, width]``, same type.

    Returns:
        ``[tokens, width]``, same type.

    Raises:
        ValueError: If a shape or a type does not fit.
    """
    require_floating("gate", gate_tf)
    require_shape("gate", gate_tf, (None, None))
    require_shape("up", up_tf, tuple(gate_tf.shape))
    require_dtype("up", up_tf, gate_tf.dtype)
    return _swiglu(gate_tf, up_tf)
