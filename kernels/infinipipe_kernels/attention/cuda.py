"""Block attention with the flash kernels that torch brings for CUDA, all segments in one call."""

from functools import lru_cache

import torch
from torch import Tensor

from infinipipe_kernels.attention.backend import check_block
from infinipipe_kernels.attention.segments import Segments

_INT32_LIMIT = 2**31
"""The kernels count rows and elements of a row in int32."""


class CudaAttention:
    """Block attention on CUDA in fp16 or bf16; see ``AttentionBackend``. Runs on meta tensors for their shapes."""

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block."""
        check_block(q_qhd, k_kgd, v_kgd, segments, is_causal=is_causal)
        _require_kernel_limits(q_qhd, k_kgd, v_kgd)
        out_qhd, lse_hq, _, _, _ = torch.ops.aten._flash_attention_forward(
            q_qhd,
            k_kgd,
            v_kgd,
            _offsets_tensor(segments.query_offsets, q_qhd.device),
            _offsets_tensor(segments.key_offsets, q_qhd.device),
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
        _require_kernel_limits(q_qhd, k_kgd, v_kgd)
        unused = torch.empty(0, dtype=torch.uint64, device=q_qhd.device)  # random state: there is no dropout
        grad_q, grad_k, grad_v = torch.ops.aten._flash_attention_backward(
            grad_qhd.contiguous(),
            q_qhd,
            k_kgd,
            v_kgd,
            out_qhd.contiguous(),
            lse_hq.contiguous(),
            _offsets_tensor(segments.query_offsets, q_qhd.device),
            _offsets_tensor(segments.key_offsets, q_qhd.device),
            segments.longest_query,
            segments.longest_key,
            0.0,
            is_causal,
            unused,
            unused,
        )
        return grad_q, grad_k, grad_v


def _require_kernel_limits(q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor) -> None:
    """Refuse what the kernels would index wrongly or not take, before they run."""
    for name, tensor in (("q", q_qhd), ("k", k_kgd), ("v", v_kgd)):
        extent = tensor.shape[0] * tensor.stride(0)
        if extent >= _INT32_LIMIT:
            raise ValueError(
                f"{name} spans {tensor.shape[0]} rows x {tensor.stride(0)} elements = {extent}, "
                f"attention on CUDA takes fewer than {_INT32_LIMIT}: use shorter chunks"
            )
    if q_qhd.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"q is {q_qhd.dtype}, attention on CUDA takes torch.float16 or torch.bfloat16")
    if q_qhd.shape[2] % 8 or q_qhd.shape[2] > 256:
        raise ValueError(f"head_dim is {q_qhd.shape[2]}, attention on CUDA takes multiples of 8 up to 256")


@lru_cache(maxsize=1024)
def _offsets_tensor(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy offsets to the device, once for all layers of a chunk: a copy waits for the device."""
    return torch.tensor(offsets, dtype=torch.int32, device=device)
