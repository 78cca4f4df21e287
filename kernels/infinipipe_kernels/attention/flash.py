"""Block attention with flash-attn 2, all segments in one call; the one owner of that dependency.

The two functions of its interface that take and return the log-sum-exp are private there; their arguments are those of
flash-attn 2.8. Importing this module imports flash-attn.
"""

import math

import flash_attn  # pyright: ignore[reportMissingImports]
import torch
from flash_attn.flash_attn_interface import (  # pyright: ignore[reportMissingImports]
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from torch import Tensor

from infinipipe_kernels.attention.backend import check_block
from infinipipe_kernels.attention.limits import offsets_tensor, require_kernel_limits
from infinipipe_kernels.attention.segments import Segments

VERSION: str = flash_attn.__version__


class FlashAttention:
    """Block attention on CUDA in fp16 or bf16; see ``AttentionBackend``."""

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block."""
        check_block(q_qhd, k_kgd, v_kgd, segments, is_causal=is_causal)
        require_kernel_limits(q_qhd, k_kgd, v_kgd)
        out_qhd, lse_hq, _, _ = _flash_attn_varlen_forward(
            q_qhd, k_kgd, v_kgd, **_arguments(q_qhd, segments, is_causal=is_causal), return_softmax=False
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
        grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_qhd, k_kgd, v_kgd))
        _flash_attn_varlen_backward(
            grad_qhd.contiguous(),
            q_qhd,
            k_kgd,
            v_kgd,
            out_qhd.contiguous(),
            lse_hq.contiguous(),
            grad_q,
            grad_k,
            grad_v,
            **_arguments(q_qhd, segments, is_causal=is_causal),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return grad_q, grad_k, grad_v


def _arguments(q_qhd: Tensor, segments: Segments, *, is_causal: bool) -> dict[str, object]:
    """What the passes of a block have in common."""
    return {
        "cu_seqlens_q": offsets_tensor(segments.query_offsets, q_qhd.device),
        "cu_seqlens_k": offsets_tensor(segments.key_offsets, q_qhd.device),
        "max_seqlen_q": segments.longest_query,
        "max_seqlen_k": segments.longest_key,
        "dropout_p": 0.0,
        "softmax_scale": 1 / math.sqrt(q_qhd.shape[2]),
        "causal": is_causal,
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
        "alibi_slopes": None,
    }
