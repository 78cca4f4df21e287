"""What the layers of a stage need to know about the chunk that runs through them."""

from dataclasses import dataclass

from torch import Tensor

from infinipipe_executor.model.rotary import RotaryTable
from infinipipe_executor.parallel.ulysses import HeadExchange
from infinipipe_executor.pipeline.chunk_layout import ChunkLayout
from infinipipe_executor.pipeline.slice_cache import SliceCache
from infinipipe_kernels.attention import AttentionBackend


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPass:
    """One chunk on its way through one stage; passes untouched through the sharding around the layers.

    Attributes:
        layout: Where its slices lie.
        caches: Slice cache of every sequence that has several slices, by index of the sequence.
        rotary: Angles of this rank's tokens.
        exchange: Between shares of tokens and shares of heads.
        attention: Block attention of the device.
        recompute_layer_count: Layers to recompute in the backward pass, from the first.
        target_ids: Targets of this rank's tokens, int64 ``[tokens]``; read on the last stage only.
        loss_scale: Factor of the loss: one over the number of targets in the whole batch.
        z_loss: Weight of the squared log-sum-exp of the logits; read on the last stage only.
        z_sum: Scalar to which the last stage adds what the z-loss makes of its loss; None to tell nobody.
    """

    layout: ChunkLayout
    caches: dict[int, SliceCache]
    rotary: RotaryTable
    exchange: HeadExchange
    attention: AttentionBackend
    recompute_layer_count: int
    target_ids: Tensor
    loss_scale: float
    z_loss: float = 0.0
    z_sum: Tensor | None = None
