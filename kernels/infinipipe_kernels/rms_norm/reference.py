"""Plain RMSNorm."""

import torch
from torch import Tensor

from infinipipe_kernels.checks import statistics_dtype


def rms_norm_reference(x_th: Tensor, weight_h: Tensor, eps: float) -> Tensor:
    """Divide every row by its root mean square and scale it; statistics in at least fp32."""
    wide_th = x_th.to(statistics_dtype(x_th.dtype))
    inverse_t1 = torch.rsqrt(wide_th.square().mean(dim=-1, keepdim=True) + eps)
    return ((wide_th * inverse_t1) * weight_h).to(x_th.dtype)
