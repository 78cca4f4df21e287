"""Counts the bytes that autograd holds between the forward and the backward pass.

Exact on every device, and on the CPU, whose allocator tells no peak, the only measure there is.
"""

from types import TracebackType

import torch
from torch import Tensor, nn


class SavedBytes:
    """Meter of saved activations; used as a context around forward passes, any number of times.

    Attributes:
        live_bytes: Bytes held now: every storage counts once, parameters do not.
        peak_bytes: Largest value of ``live_bytes`` so far.
    """

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._holders: dict[int, int] = {}
        self._hooks: list[torch.autograd.graph.saved_tensors_hooks] = []

    def __enter__(self) -> "SavedBytes":
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Held(self, tensor), lambda held: held.tensor)
        self._hooks.append(hooks)
        hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.pop().__exit__(kind, error, trace)

    def add(self, tensor: Tensor) -> int | None:
        """Count a tensor's storage, if it is not a parameter's; return the storage's key."""
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return None
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        self._holders[key] = self._holders.get(key, 0) + 1
        if self._holders[key] == 1:
            self.live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return key

    def remove(self, key: int, storage_bytes: int) -> None:
        """Count a storage out, once its last holder is gone."""
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self.live_bytes -= storage_bytes


class _Held:
    """A saved tensor; counts itself out when the graph lets go of it."""

    def __init__(self, meter: SavedBytes, tensor: Tensor) -> None:
        self.tensor = tensor
        self._meter = meter
        self._key = meter.add(tensor)
        self._bytes = tensor.untyped_storage().nbytes()

    def __del__(self) -> None:
        if self._key is not None:
            self._meter.remove(self._key, self._bytes)
