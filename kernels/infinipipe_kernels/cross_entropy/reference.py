"""Plain cross-entropy."""

from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.checks import statistics_dtype


def cross_entropy_reference(logits_tv: Tensor, targets_t: Tensor, scale: float, ignore_target: int = -100) -> Tensor:
    """Sum the negative log-likelihood of all targets that count, times ``scale``, in at least fp32."""
    wide_tv = logits_tv.to(statistics_dtype(logits_tv.dtype))
    return scale * functional.cross_entropy(wide_tv, targets_t, ignore_index=ignore_target, reduction="sum")
