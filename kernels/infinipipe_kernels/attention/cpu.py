"""Block attention with torch's flash kernel for the CPU, one call a segment."""

import torch
from torch import Tensor

from infinipipe_kernels.attention.backend import check_block
from infinipipe_kernels.attention.segments import Segments
from infinipipe_kernels.checks import statistics_dtype

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class CpuAttention:
    """Block attention on the CPU; see ``AttentionBackend``.

    Segments without rows never reach the kernel: it ends the whole process with a division by zero.
    """

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block."""
        check_block(q_qhd, k_kgd, v_kgd, segments, is_causal=is_causal)
        rows = segments.rows()
        if len(rows) == 1:  # what the kernel gives is already laid out as the block, and nothing is copied
            queries, keys = rows[0]
            return _forward_segment(q_qhd[queries], k_kgd[keys], v_kgd[keys], is_causal=is_causal)
        out_qhd = torch.empty(q_qhd.shape, dtype=q_qhd.dtype)
        lse_hq = torch.empty(q_qhd.shape[1], q_qhd.shape[0], dtype=statistics_dtype(q_qhd.dtype))
        for queries, keys in rows:
            out_qhd[queries], lse_hq[:, queries] = _forward_segment(
                q_qhd[queries], k_kgd[keys], v_kgd[keys], is_causal=is_causal
            )
        return out_qhd, lse_hq

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
        rows = segments.rows()
        if len(rows) == 1 and segments.key_count == rows[0][1].stop - rows[0][1].start:
            return _backward_segment(grad_qhd, q_qhd, k_kgd, v_kgd, out_qhd, lse_hq, is_causal=is_causal)
        grad_q = torch.empty(q_qhd.shape, dtype=q_qhd.dtype)
        grad_k = torch.zeros(k_kgd.shape, dtype=k_kgd.dtype)  # of keys that no query sees
        grad_v = torch.zeros(v_kgd.shape, dtype=v_kgd.dtype)
        for queries, keys in rows:
            grad_q[queries], grad_k[keys], grad_v[keys] = _backward_segment(
                grad_qhd[queries],
                q_qhd[queries],
                k_kgd[keys],
                v_kgd[keys],
                out_qhd[queries],
                lse_hq[:, queries],
                is_causal=is_causal,
            )
        return grad_q, grad_k, grad_v


def _forward_segment(q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    out_1hqd, lse_1hq = _forward(_heads_first(q_qhd), _heads_first(k_kgd), _heads_first(v_kgd), 0.0, is_causal)
    return out_1hqd[0].transpose(0, 1), lse_1hq[0]


def _backward_segment(
    grad_qhd: Tensor, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, out_qhd: Tensor, lse_hq: Tensor, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    # Widened: in bf16 the kernel takes a millisecond for any segment, and about twice as long as in fp32 for long ones.
    wide = (_heads_first(x.to(lse_hq.dtype)) for x in (grad_qhd, q_qhd, k_kgd, v_kgd, out_qhd))
    grads = _backward(*wide, lse_hq.unsqueeze(0), 0.0, is_causal)
    grad_q, grad_k, grad_v = (grad[0].transpose(0, 1).to(q_qhd.dtype) for grad in grads)
    return grad_q, grad_k, grad_v


def _heads_first(x_thd: Tensor) -> Tensor:
    """View ``[T, H, D]`` as the ``[1, H, T, D]`` that the kernel takes."""
    return x_thd.transpose(0, 1).unsqueeze(0)
