"""What the flash kernels for CUDA take, and the offsets of segments as they read them."""

from functools import lru_cache

import torch
from torch import Tensor

_INT32_LIMIT = 2**31
"""The kernels count rows and elements of a row in int32."""


def most_rows(row_elements: int) -> int:
    """Count the rows of so many elements that the kernels take at most."""
    return (_INT32_LIMIT - 1) // row_elements


def require_kernel_limits(q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor) -> None:
    """Refuse what the kernels would index wrongly or not take, before they run.

    Raises:
        ValueError: With the value and what is taken.
    """
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
def offsets_tensor(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy offsets to the device as int32, once for all layers of a chunk: a copy waits for the device."""
    return torch.tensor(offsets, dtype=torch.int32, device=device)
