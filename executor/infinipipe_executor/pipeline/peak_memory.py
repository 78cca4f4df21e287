"""The largest memory of a rank's device during a step.

On CUDA it is what the allocator saw; on the CPU, whose allocator tells no peak, parameters, gradients and the
activations that autograd held.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from infinipipe_executor.pipeline.saved_bytes import SavedBytes


class PeakMemory:
    """Meter of one stage on one device.

    Args:
        stage: Holds the parameters and their gradients.
        device: Where they lie.
    """

    def __init__(self, stage: nn.Module, device: torch.device) -> None:
        self._stage = stage
        self._device = device
        self.saved = SavedBytes()
        """Activations held; counted on the CPU only."""

    def begin(self) -> None:
        """Start a step."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self.saved.peak_bytes = self.saved.live_bytes

    def around_forward(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass must run."""
        return self.saved if self._device.type == "cpu" else nullcontext()

    def end(self, *, whole_gradients: bool) -> float:
        """Return the bytes at the peak since ``begin``.

        Args:
            whole_gradients: Whether the gradients were those of the whole stage, not of this rank's shard.
        """
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device))
        return float(self.saved.peak_bytes + _parameter_bytes(self._stage, whole_gradients=whole_gradients))


def _parameter_bytes(stage: nn.Module, *, whole_gradients: bool) -> int:
    """Bytes of this rank's parameters, and of its gradients as they were: those of the whole stage or of its shard."""
    total_bytes = 0
    for parameter in stage.parameters():
        shard_bytes = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).nbytes
        gradient_bytes = parameter.nbytes if whole_gradients else shard_bytes
        total_bytes += shard_bytes + (0 if parameter.grad is None else gradient_bytes)
    return total_bytes
