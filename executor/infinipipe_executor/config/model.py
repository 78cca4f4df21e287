"""Section ``[model]``: the model that is trained."""

from typing import Literal

from infinipipe_executor.config.section import Positive, Ratio, Section


class ModelSection(Section):
    """Section ``[model]``: a Llama by its sizes.

    Attributes:
        layers: Transformer layers, at least ``cluster.pp_size``.
        hidden: Width of the residual stream.
        heads: Query heads; a multiple of ``cluster.sp_size``.
        kv_heads: Key and value heads; ``heads`` is a multiple of it.
        head_dim: Width of one head.
        ffn: Width of the feed-forward layer.
        vocab: Entries of the vocabulary; also the size of a tokenizer trained on the corpus.
        dropout: Share of zeroed elements on both residual branches.
        dtype: Type of the computation; parameters and their gradients are always float32.
    """

    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    ffn: Positive
    vocab: Positive
    dropout: Ratio = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"
