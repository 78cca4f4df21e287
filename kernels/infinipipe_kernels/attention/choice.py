"""Chooses the implementation of attention: the first that is there of flash-attn, torch's flash kernels, the CPU's."""

from dataclasses import dataclass

import torch

from infinipipe_kernels.attention.backend import AttentionBackend


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """An implementation of attention and the reason for it.

    Attributes:
        backend: The implementation.
        description: Its name and why it was chosen, in a few words.
    """

    backend: AttentionBackend
    description: str


def backend_for(device: torch.device) -> AttentionBackend:
    """Choose the implementation for a device."""
    return choose_backend(device).backend


def choose_backend(device: torch.device) -> BackendChoice:
    """Choose the implementation for a device, and say why.

    On CUDA flash-attn is taken where it can be imported, for its kernels are newer than those that torch brings. Meta
    tensors, which are there for their shapes, go the way of torch on CUDA.
    """
    if device.type == "cuda":
        try:
            from infinipipe_kernels.attention import flash  # noqa: PLC0415
        except ImportError as error:
            if error.name == "flash_attn":
                return _torch_kernels("flash-attn is not installed")
            return _torch_kernels(f"flash-attn cannot be imported: {error}")  # often built for another torch
        return BackendChoice(flash.FlashAttention(), f"flash-attn {flash.VERSION} (it is installed)")
    if device.type == "meta":
        return _torch_kernels("for shapes only")
    from infinipipe_kernels.attention.cpu import CpuAttention  # noqa: PLC0415

    return BackendChoice(
        CpuAttention(), f"torch's flash kernel for the CPU, blocks merged by log-sum-exp (the device is {device.type})"
    )


def _torch_kernels(reason: str) -> BackendChoice:
    from infinipipe_kernels.attention.cuda import CudaAttention  # noqa: PLC0415

    return BackendChoice(CudaAttention(), f"torch's own flash kernels ({reason})")
