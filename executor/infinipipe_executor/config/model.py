"""Section ``[model]``: the model that is trained."""

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from infinipipe_executor.config.section import Positive, Ratio, Section


class ModelSection(Section):
    """Section ``[model]``: either a Hugging Face folder, or a Llama by its sizes with weights that are drawn.

    Attributes:
        path: Folder with ``config.json`` and safetensors; takes the place of all sizes.
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

    path: Path | None = None
    layers: Positive | None = None
    hidden: Positive | None = None
    heads: Positive | None = None
    kv_heads: Positive | None = None
    head_dim: Positive | None = None
    ffn: Positive | None = None
    vocab: Positive | None = None
    dropout: Ratio = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"

    # The validator sees the sizes that are absent, too.
    model_config = ConfigDict(validate_default=True)

    @field_validator("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    @classmethod
    def _check_way(cls, size: int | None, info: ValidationInfo) -> int | None:
        """Take the sizes either all from the folder or all from here."""
        if "path" not in info.data:  # itself at fault, which is said
            return size
        if info.data["path"] is None and size is None:
            raise PydanticCustomError("missing", "missing")
        if info.data["path"] is not None and size is not None:
            raise ValueError("[model] path names a model with sizes of its own, leave this key out")
        return size
