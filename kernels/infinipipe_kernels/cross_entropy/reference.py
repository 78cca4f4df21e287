"""Plain cross-entropy."""

import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.checks import statistics_dtype


def cross_entropy_reference(
    logits_tv: Tensor, targets_t: Tensor, scale: float, ignore_target: int = -100, *, z_loss: float = 0.0
) -> Tensor:
    """Sum the negative log-likelihood of all targets that count, and the z-loss, times ``scale``, in at least fp32."""
    wide_tv = logits_tv.to(statistics_dtype(logits_tv.dtype))
    loss = functional.cross_entropy(wide_tv, targets_t, ignore_index=ignore_target, reduction="sum")
    lse_t = torch.logsumexp(wide_tv[targets_t != ignore_target], dim=-1)
    return scale * (loss + z_loss * lse_t.square().sum())
