"""CUDA: settings that have to be made before the device is first used, and what its allocator holds."""

import os

import torch

_GIB = 2**30


def set_cuda_defaults() -> None:
    """Set what this executor needs of CUDA and its allocator, unless the user's environment says otherwise.

    - Chunks differ in size from step to step, so blocks of memory of one step do not fit those of the next one; with
      segments that can grow, the allocator puts them together instead of asking for ever more.
    - Streams share the queues of the device, 8 unless told otherwise, and what stands in a queue waits for what stands
      in front of it. A stage has more streams than that: one for each channel and group, and those of the sharding. A
      message that waits for its receiver must not stand in front of anything.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def describe_memory(device: torch.device) -> str:
    """Say how much memory tensors took at most since the peak was last reset, and how much was reserved for them."""
    allocated_bytes, reserved_bytes = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return f"device memory at most: {allocated_bytes / _GIB:.2f} GiB in use, {reserved_bytes / _GIB:.2f} GiB reserved"
