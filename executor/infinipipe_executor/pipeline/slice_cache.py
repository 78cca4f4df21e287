"""Keys and values of the earlier slices of a sequence, and the gradients that later slices send back to them.

Forward passes run in slice order and write; backward passes run in reverse order: a slice's backward pass adds to the
gradients of all slices before it, so when its own turn comes every later slice has added its share, and the entry
goes (paper, III-A2). The cache is no part of the autograd graph: recompute may drop what autograd saved, never what is
here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class KeyValue(NamedTuple):
    """Keys and values (or their gradients) of one slice in one layer, each ``[tokens, heads, head_dim]``."""

    key: Tensor
    value: Tensor


@dataclass
class _Entry:
    key_value: KeyValue
    gradient: KeyValue | None = None


class SliceCache:
    """Cache of one sequence on one stage.

    Args:
        layer_count: Layers of the stage.
        slice_count: Slices of the sequence.
    """

    def __init__(self, layer_count: int, slice_count: int) -> None:
        self._slice_count = slice_count
        self._layers: list[dict[int, _Entry]] = [{} for _ in range(layer_count)]
        self.write_count = 0

    def put(self, stage_layer: int, slice_index: int, key_value: KeyValue, *, copies: bool) -> None:
        """Keep a slice's keys and values for later slices.

        The last slice is not kept: nothing attends to it. A second call for the same slice comes from recompute and
        changes nothing.

        Args:
            stage_layer: Layer within the stage.
            slice_index: Slice within the sequence.
            key_value: Its keys and values.
            copies: Whether to copy them: where the layer is recomputed, a view would keep alive what was to be dropped.
        """
        if slice_index == self._slice_count - 1:
            return
        entries = self._layers[stage_layer]
        if slice_index in entries:
            return
        assert len(entries) == slice_index, f"slice {slice_index} runs forward after {len(entries)} slices"
        key, value = (tensor.detach() for tensor in key_value)
        entries[slice_index] = _Entry(KeyValue(key.clone(), value.clone()) if copies else KeyValue(key, value))
        self.write_count += 1

    def context(self, stage_layer: int, slice_index: int) -> list[KeyValue]:
        """Return keys and values of all slices before one, in order."""
        entries = self._layers[stage_layer]
        assert all(index in entries for index in range(slice_index)), f"slice {slice_index} lacks its context"
        return [entries[index].key_value for index in range(slice_index)]

    def add_gradient(self, stage_layer: int, slice_index: int, gradient: KeyValue) -> None:
        """Add what a later slice sends back to a slice.

        The sum is kept in at least fp32: in a narrower type its error would grow with the number of slices.
        """
        entry = self._layers[stage_layer][slice_index]
        if entry.gradient is None:
            wide = torch.promote_types(gradient.key.dtype, torch.float32)
            entry.gradient = KeyValue(gradient.key.to(wide), gradient.value.to(wide))
        else:
            entry.gradient.key.add_(gradient.key)
            entry.gradient.value.add_(gradient.value)

    def take_gradient(self, stage_layer: int, slice_index: int) -> KeyValue | None:
        """Return what all later slices sent back to a slice, at least fp32, and forget the slice; None for the last."""
        if slice_index == self._slice_count - 1:
            return None
        entries = self._layers[stage_layer]
        assert max(entries) == slice_index, f"slice {slice_index} runs backward before slice {max(entries)}"
        gradient = entries.pop(slice_index).gradient
        assert gradient is not None, f"slice {slice_index} runs backward before any later slice"
        return gradient

    def clear(self) -> None:
        """Forget all slices: behind the last one, where no backward pass follows."""
        for entries in self._layers:
            entries.clear()

    @property
    def is_empty(self) -> bool:
        """Whether every slice has run backward."""
        return not any(self._layers)
