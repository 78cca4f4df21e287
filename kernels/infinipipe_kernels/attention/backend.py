"""The one interface of all attention implementations: a block forward, and a block backward under a global softmax.

A block is a set of segments, each of which attends to its own keys only. The attention of a query over several blocks
is merged from their outputs and log-sum-exps (``merge``). Each block's backward then takes the *merged* output and
log-sum-exp, from which the softmax of the block follows without a second pass.

Suffixes: q query rows, k key rows, h query heads, g key/value heads (h is a multiple of g), d width of a head.
"""

from typing import Protocol

from torch import Tensor

from infinipipe_kernels.attention.segments import Segments
from infinipipe_kernels.checks import require_dtype, require_floating, require_shape

__all__ = ["AttentionBackend", "Segments", "check_block"]


class AttentionBackend(Protocol):
    """An implementation of block attention; without state."""

    def forward(
        self, q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Attend to one block.

        Args:
            q_qhd: Queries.
            k_kgd: Keys.
            v_kgd: Values.
            segments: Which rows belong together.
            is_causal: Whether row i of a segment sees its keys up to i; needs as many keys as queries.

        Returns:
            Output ``[Q, H, D]`` and log-sum-exp ``[H, Q]`` in at least fp32.

        Raises:
            ValueError: If a shape, a type or a size does not fit.
        """
        ...

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
        """Differentiate one block of a softmax that may reach over several.

        Args:
            grad_qhd: Gradient of the merged output.
            q_qhd: Queries.
            k_kgd: Keys of this block.
            v_kgd: Values of this block.
            out_qhd: Merged output.
            lse_hq: Merged log-sum-exp.
            segments: As in the forward pass of this block.
            is_causal: As in the forward pass of this block.

        Returns:
            This block's share of the gradient of the queries, and the gradients of its keys and values.

        Raises:
            ValueError: If a shape, a type or a size does not fit.
        """
        ...


def check_block(q_qhd: Tensor, k_kgd: Tensor, v_kgd: Tensor, segments: Segments, *, is_causal: bool) -> None:
    """Refuse a block that does not fit together.

    Raises:
        ValueError: With the name, the value and what it must be.
    """
    require_floating("q", q_qhd)
    require_shape("q", q_qhd, (segments.query_count, None, None))
    require_shape("k", k_kgd, (segments.key_count, None, q_qhd.shape[2]))
    require_shape("v", v_kgd, tuple(k_kgd.shape))
    require_dtype("k", k_kgd, q_qhd.dtype)
    require_dtype("v", v_kgd, q_qhd.dtype)
    if q_qhd.shape[1] % max(1, k_kgd.shape[1]):
        raise ValueError(f"{q_qhd.shape[1]} query heads are no multiple of {k_kgd.shape[1]} key heads")
    if is_causal and segments.query_offsets != segments.key_offsets:
        raise ValueError("a causal block needs as many keys as queries in every segment")
    for queries, keys in segments.rows():
        if keys.stop == keys.start:
            raise ValueError(f"the segment of query rows {queries.start} to {queries.stop} has no keys")
