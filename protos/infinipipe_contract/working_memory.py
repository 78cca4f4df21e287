"""Memory of a stage that the paper leaves out: what a pass needs while it runs, and what waits beside activations.

All of it is per token and, like M_token, not divided among the ranks of a stage.
"""

from dataclasses import dataclass

from infinipipe_contract.model_memory import DecoderShape, held_kv_dim

ID_BYTES = 8
"""Bytes of one token id or target."""

WIDE_BYTES = 4
"""Bytes of one element of what is kept in at least fp32."""


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """Bytes beyond Eqs. 5 to 10.

    Attributes:
        chunk_token_bytes: Per token, held by every stage between the passes of a chunk: rotary angles, ids, targets.
        forward_token_bytes: Per token, most temporaries at the end of a forward pass, beside what its layers save.
        recompute_token_bytes: The same where the last layer is recomputed later and saves nothing.
        backward_token_bytes: Per token, most temporaries of a backward pass, beside what one layer saved.
        context_token_bytes: Per token, all that one layer holds while its attention to a context runs backward,
            beside the sums of key and value gradients.
        kv_gradient_bytes: Bytes of one element of the sums of key and value gradients.
    """

    chunk_token_bytes: float
    forward_token_bytes: float
    recompute_token_bytes: float
    backward_token_bytes: float
    context_token_bytes: float
    kv_gradient_bytes: float


def working_memory(shape: DecoderShape, dtype_bytes: int, sp_size: int = 1) -> WorkingMemory:
    """Count the temporaries of a layer as the kernels for CUDA make them.

    Forward, a layer ends with the output of its feed-forward layer and the sum that it is added to; a layer that saves
    nothing needs most at its activation, with both halves and their product. Backward, the most is needed at the
    activation: gradients of both halves, while that of their product is still there. Attention to a context comes when
    the feed-forward layer has let go of what it saved; it holds gradients of queries, keys and values twice, of the
    chunk itself and of one slice of the context, and a sum for the queries in fp32.

    Args:
        shape: Sizes of the model.
        dtype_bytes: Bytes of one activation element.
        sp_size: Ranks of one stage.

    Returns:
        Bytes of one token, not divided among devices.
    """
    hidden, ffn = shape.hidden, shape.ffn
    wide_bytes = max(WIDE_BYTES, dtype_bytes)
    heads_dim = shape.query_dim + 2 * held_kv_dim(shape, sp_size)
    head_norms = shape.query_dim + shape.kv_dim if shape.has_qk_norm else 0
    context = 4 * hidden + 2 * shape.query_dim + 3 * heads_dim + head_norms
    return WorkingMemory(
        chunk_token_bytes=wide_bytes * shape.head_dim + 2 * ID_BYTES,
        forward_token_bytes=dtype_bytes * 2 * hidden,
        recompute_token_bytes=dtype_bytes * (2 * hidden + 3 * ffn),
        backward_token_bytes=dtype_bytes * (hidden + 2 * ffn),
        context_token_bytes=dtype_bytes * context + wide_bytes * shape.query_dim,
        kv_gradient_bytes=wide_bytes,
    )
