"""Which implementation of an operator runs: Triton's on CUDA, torch's operators everywhere else."""

from importlib.util import find_spec

import torch
from torch import Tensor

_TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def runs_triton(x: Tensor) -> bool:
    """Whether an operator of this tensor runs in Triton: on CUDA, in fp32, bf16 or fp16, if Triton is installed."""
    return x.is_cuda and x.dtype in _TRITON_DTYPES and has_triton()


def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def describe_operators(device: torch.device) -> str:
    """Say in a few words which kernels norms, activation and loss use on a device, and why."""
    if device.type != "cuda":
        return f"operators of torch (the device is {device.type})"
    return "Triton kernels" if has_triton() else "operators of torch (triton is not installed: pip install triton)"
