"""Plain attention with an explicit mask; the scores are materialised, so for tests only."""

import math

import torch
from torch import Tensor

from infinipipe_kernels.attention.backend import check_block
from infinipipe_kernels.attention.segments import Segments
from infinipipe_kernels.checks import statistics_dtype


class ReferenceAttention:
    """Block attention with one mask over all segments; see ``AttentionBackend``."""

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block."""
        check_block(q_qhd, k_kgd, v_kgd, segments, is_causal=is_causal)
        scores_hqk = _scores(q_qhd, k_kgd, segments, is_causal=is_causal)
        lse_hq = torch.logsumexp(scores_hqk, dim=-1)
        weights_hqk = torch.exp(scores_hqk - lse_hq[..., None])
        wide_v_khd = _repeat_heads(v_kgd, q_qhd.shape[1]).to(scores_hqk.dtype)
        return torch.einsum("hqk,khd->qhd", weights_hqk, wide_v_khd).to(q_qhd.dtype), lse_hq

    def backward(
        self,
        grad_qhd: Tensor,
        q_qhd: Tensor,
        k_kgd: Tensor,
        v_kgd: Tensor,
        out_qhd: Tensor,
        lse_hq: Tensor,
        segments: Segments,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Differentiate one block of a softmax that may reach over several."""
        wide = lse_hq.dtype
        heads, groups, scale = q_qhd.shape[1], k_kgd.shape[1], _scale(q_qhd)
        grad, q = grad_qhd.to(wide), q_qhd.to(wide)
        k, v = _repeat_heads(k_kgd, heads).to(wide), _repeat_heads(v_kgd, heads).to(wide)
        weights_hqk = torch.exp(_scores(q_qhd, k_kgd, segments, is_causal=is_causal) - lse_hq[..., None])
        delta_hq = (grad * out_qhd.to(wide)).sum(dim=-1).transpose(0, 1)
        grad_weights_hqk = torch.einsum("qhd,khd->hqk", grad, v)
        grad_scores_hqk = weights_hqk * (grad_weights_hqk - delta_hq[..., None]) * scale
        grad_q = torch.einsum("hqk,khd->qhd", grad_scores_hqk, k)
        grad_k = _sum_heads(torch.einsum("hqk,qhd->khd", grad_scores_hqk, q), groups)
        grad_v = _sum_heads(torch.einsum("hqk,qhd->khd", weights_hqk, grad), groups)
        return grad_q.to(q_qhd.dtype), grad_k.to(k_kgd.dtype), grad_v.to(v_kgd.dtype)


def _repeat_heads(x_kgd: Tensor, heads: int) -> Tensor:
    return x_kgd.repeat_interleave(heads // x_kgd.shape[1], dim=1)


def _sum_heads(grad_khd: Tensor, groups: int) -> Tensor:
    return grad_khd.view(grad_khd.shape[0], groups, grad_khd.shape[1] // groups, grad_khd.shape[2]).sum(dim=2)


def _scale(q_qhd: Tensor) -> float:
    return 1 / math.sqrt(q_qhd.shape[2])


def _scores(q_qhd: Tensor, k_kgd: Tensor, segments: Segments, *, is_causal: bool) -> Tensor:
    wide = statistics_dtype(q_qhd.dtype)
    k_khd = _repeat_heads(k_kgd, q_qhd.shape[1])
    scores_hqk = torch.einsum("qhd,khd->hqk", q_qhd.to(wide), k_khd.to(wide)) * _scale(q_qhd)
    visible_qk = torch.zeros(segments.query_count, segments.key_count, dtype=torch.bool, device=q_qhd.device)
    for queries, keys in segments.rows():
        visible_qk[queries, keys] = True
    if is_causal:
        visible_qk = visible_qk.tril()
    return scores_hqk.masked_fill(~visible_qk, float("-inf"))
