"""Block attention with the flash kernels that torch brings for CUDA, all segments in one call."""

import torch
from torch import Tensor

from infinipipe_kernels.attention.backend import check_block
from infinipipe_kernels.attention.limits import offsets_tensor, require_kernel_limits
from infinipipe_kernels.attention.segments import Segments


class CudaAttention:
    """Block attention on CUDA in fp16 or bf16; see ``AttentionBackend``. Runs on meta tensors for their shapes."""

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block."""
        check_block(q_qhd, k_kgd, v_kgd, segments, is_causal=is_causal)
        require_kernel_limits(q_qhd, k_kgd, v_kgd)
        out_qhd, lse_hq, _, _, _ = torch.ops.aten._flash_attention_forward(
            q_qhd,
            k_kgd,
            v_kgd,
            offsets_tensor(segments.query_offsets, q_qhd.device),
            offsets_tensor(segments.key_offsets, q_qhd.device),
            segments.longest_query,
            segments.longest_key,
            0.0,
            is_causal,
            False,
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
        require_kernel_limits(q_qhd, k_kgd, v_kgd)
        unused = torch.empty(0, dtype=torch.uint64, device=q_qhd.device)  # random state: there is no dropout
        grad_q, grad_k, grad_v = torch.ops.aten._flash_attention_backward(
            grad_qhd.contiguous(),
            q_qhd,
            k_kgd,
            v_kgd,
            out_qhd.contiguous(),
            lse_hq.contiguous(),
            offsets_tensor(segments.query_offsets, q_qhd.device),
            offsets_tensor(segments.key_offsets, q_qhd.device),
            segments.longest_query,
            segments.longest_key,
            0.0,
            is_causal,
            unused,
            unused,
        )
        return grad_q, grad_k, grad_v
