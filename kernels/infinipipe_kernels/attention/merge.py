"""Merging the attention of one set of queries over several blocks of keys."""

import torch
from torch import Tensor


def merge_blocks(out_qhd: Tensor, lse_hq: Tensor, other_qhd: Tensor, other_lse_hq: Tensor) -> tuple[Tensor, Tensor]:
    """Merge two blocks: the result is the attention over both sets of keys.

    Args:
        out_qhd: Output over the first block.
        lse_hq: Its log-sum-exp, in at least fp32.
        other_qhd: Output over the second block.
        other_lse_hq: Its log-sum-exp.

    Returns:
        Output and log-sum-exp over both, in the type of the log-sum-exp: round once, after the last merge.
    """
    merged_lse_hq = torch.logaddexp(lse_hq, other_lse_hq)
    weight_qh1 = torch.exp(lse_hq - merged_lse_hq).transpose(0, 1).unsqueeze(-1)
    other_weight_qh1 = torch.exp(other_lse_hq - merged_lse_hq).transpose(0, 1).unsqueeze(-1)
    return out_qhd * weight_qh1 + other_qhd * other_weight_qh1, merged_lse_hq
