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
        out_qhd = torch.empty(q_qhd.shape, dtype=q_qhd.dtype)
        lse_hq = torch.empty(q_qhd.shape[1], q_qhd.shape[0], dtype=statistics_dtype(q_qhd.dtype))
        for queries, keys in segments.rows():
            out_1hqd, lse_1hq = _forward(
                _heads_first(q_qhd[queries]), _heads_first(k_kgd[keys]), _heads_first(v_kgd[keys]), 0.0, is_causal
            )
            out_qhd[queries] = out_1hqd[0].transpose(0, 1)
            lse_hq[:, queries] = lse_1hq[0]
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
        grad_q = torch.zeros(q_qhd.shape, dtype=q_qhd.dtype)
        grad_k = torch.zeros(k_kgd.shape, dtype=k_kgd.dtype)
        grad_v = torch.zeros(v_kgd.shape, dtype=v_kgd.dtype)
        for queries, keys in segments.rows():
            grads = _backward(
                _heads_first(grad_qhd[queries]),
                _heads_first(q_qhd[queries]),
                _heads_first(k_kgd[keys]),
                _heads_first(v_kgd[keys]),
                _heads_first(out_qhd[queries]),
                lse_hq[:, queries].unsqueeze(0),
                0.0,
                is_causal,
            )
            grad_q[queries], grad_k[keys], grad_v[keys] = (grad[0].transpose(0, 1) for grad in grads)
        return grad_q, grad_k, grad_v


def _heads_first(x_thd: Tensor) -> Tensor:
    """View ``[T, H, D]`` as the ``[1, H, T, D]`` that the kernel takes."""
    return x_thd.transpose(0, 1).unsqueeze(0)
