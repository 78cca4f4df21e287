"""SwiGLU in Triton: element by element, counted in int64."""

# Kernels are written in Triton's language, of which type checkers see the Python only.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
_WARPS = 8


@triton.jit
def swiglu_forward_kernel(
    gate_ptr: tl.tensor,
    up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Activate BLOCK elements."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    gate = tl.load(gate_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_backward_kernel(
    grad_ptr: tl.tensor,
    gate_ptr: tl.tensor,
    up_ptr: tl.tensor,
    grad_gate_ptr: tl.tensor,
    grad_up_ptr: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Differentiate BLOCK elements."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    grad_gate = grad * up * (sigmoid + silu * (1.0 - sigmoid))
    tl.store(grad_gate_ptr + offsets, grad_gate.to(grad_gate_ptr.dtype.element_ty), mask=mask)
    tl.store(grad_up_ptr + offsets, (grad * silu).to(grad_up_ptr.dtype.element_ty), mask=mask)


def forward(gate_tf: Tensor, up_tf: Tensor) -> Tensor:
    """Activate."""
    gate_tf, up_tf = gate_tf.contiguous(), up_tf.contiguous()
    out_tf = torch.empty_like(gate_tf)
    count = gate_tf.numel()
    if count:
        swiglu_forward_kernel[(triton.cdiv(count, _BLOCK),)](
            gate_tf, up_tf, out_tf, count, BLOCK=_BLOCK, num_warps=_WARPS, enable_fp_fusion=True
        )
    return out_tf


def backward(grad_tf: Tensor, gate_tf: Tensor, up_tf: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up."""
    grad_tf, gate_tf, up_tf = grad_tf.contiguous(), gate_tf.contiguous(), up_tf.contiguous()
    grad_gate_tf, grad_up_tf = torch.empty_like(gate_tf), torch.empty_like(up_tf)
    count = gate_tf.numel()
    if count:
        swiglu_backward_kernel[(triton.cdiv(count, _BLOCK),)](
            grad_tf,
            gate_tf,
            up_tf,
            grad_gate_tf,
            grad_up_tf,
            count,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
            enable_fp_fusion=True,
        )
    return grad_gate_tf, grad_up_tf
