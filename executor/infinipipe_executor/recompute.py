"""Recompute: a layer forgets its activations after the forward pass and runs again before its backward pass.

Keys and values that later slices attend to stay in the slice cache (paper, Eq. 9); only what autograd saved is dropped.
"""

from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from infinipipe_executor.model.layer import Layer
    from infinipipe_executor.pipeline.chunk_pass import ChunkPass


def run_recomputed(layer: "Layer", x: Tensor, chunk_pass: "ChunkPass", *, has_dropout: bool) -> Tensor:
    """Run a layer whose activations are recomputed in the backward pass.

    Args:
        layer: The layer, with its sharding around it: the backward pass gathers its parameters before the recompute.
        x: ``[tokens, hidden]``, the only activation that stays.
        chunk_pass: The chunk; the recompute finds its keys and values already cached and does not write again.
        has_dropout: Whether the recompute must draw the same masks, although other chunks drew theirs in between.

    Returns:
        ``[tokens, hidden]``.
    """
    output = checkpoint(layer, x, chunk_pass, use_reentrant=False, preserve_rng_state=has_dropout)
    assert isinstance(output, Tensor)
    return output
