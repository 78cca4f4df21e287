"""RMSNorm in Triton: a program takes a tile of whole rows, several of them where rows are short.

The gradient of the weight is summed in two steps, in an order that depends on the shape alone: every program sums its
own rows, then torch sums the programs' parts. The same input gives the same bits.
"""

# Kernels are written in Triton's language, of which type checkers see the Python only.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE_ELEMENTS = 4096
_MOST_PARTS = 256
"""Parts of the weight's gradient: enough to keep every GPU at work, few enough to be small beside the input."""


@triton.jit
def rms_norm_forward_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    inverse_ptr: tl.tensor,
    tokens: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Normalise ROWS rows and store the inverse of their root mean square."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < tokens)[:, None] & (columns < width)[None, :]
    offsets = rows[:, None] * width + columns[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps)
    out = x * inverse[:, None] * weight[None, :]
    tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(inverse_ptr + rows, inverse, mask=rows < tokens)


@triton.jit
def rms_norm_backward_kernel(
    grad_ptr: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    inverse_ptr: tl.tensor,
    grad_x_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    tokens: tl.tensor,
    width: tl.tensor,
    part_rows: tl.tensor,
    ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Differentiate ``part_rows`` rows, ROWS at a time, and store their part of the weight's gradient."""
    part = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, part_rows, ROWS):
        rows = part * part_rows + start + tl.arange(0, ROWS)
        mask = (rows < tokens)[:, None] & (columns < width)[None, :]
        offsets = rows[:, None] * width + columns[None, :]
        grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        inverse = tl.load(inverse_ptr + rows, mask=rows < tokens, other=0.0)
        normed = x * inverse[:, None]
        scaled = grad * weight[None, :]
        projection = tl.sum(scaled * normed, axis=1) / width
        grad_x = inverse[:, None] * (scaled - normed * projection[:, None])
        tl.store(grad_x_ptr + offsets, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
        grad_weight += tl.sum(grad * normed, axis=0)
    tl.store(parts_ptr + part * width + columns, grad_weight, mask=columns < width)


def forward(x_th: Tensor, weight_h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Normalise; return the output and the inverse root mean square, fp32 ``[tokens, 1]``."""
    tokens, width = x_th.shape
    x_th = x_th.contiguous()
    out_th = torch.empty_like(x_th)
    inverse_t1 = torch.empty(tokens, 1, dtype=torch.float32, device=x_th.device)
    if x_th.numel():
        rows, block, warps = _tile(width)
        rms_norm_forward_kernel[(triton.cdiv(tokens, rows),)](
            x_th,
            weight_h,
            out_th,
            inverse_t1,
            tokens,
            width,
            eps,
            ROWS=rows,
            BLOCK=block,
            num_warps=warps,
            enable_fp_fusion=True,
        )
    return out_th, inverse_t1


def backward(grad_th: Tensor, x_th: Tensor, weight_h: Tensor, inverse_t1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and weight."""
    tokens, width = x_th.shape
    x_th = x_th.contiguous()
    grad_x_th = torch.empty_like(x_th)
    if not x_th.numel():
        return grad_x_th, torch.zeros_like(weight_h)
    rows, block, warps = _tile(width)
    part_rows = rows * triton.cdiv(triton.cdiv(tokens, rows), _MOST_PARTS)
    parts = triton.cdiv(tokens, part_rows)
    parts_ph = torch.empty(parts, width, dtype=torch.float32, device=x_th.device)
    rms_norm_backward_kernel[(parts,)](
        grad_th.contiguous(),
        x_th,
        weight_h,
        inverse_t1,
        grad_x_th,
        parts_ph,
        tokens,
        width,
        part_rows,
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        enable_fp_fusion=True,
    )
    return grad_x_th, parts_ph.sum(dim=0).to(weight_h.dtype)


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, powers of two, and the warps that share it."""
    block = triton.next_power_of_2(width)
    rows = max(1, _TILE_ELEMENTS // block)
    return rows, block, min(32, max(4, rows * block // 512))
