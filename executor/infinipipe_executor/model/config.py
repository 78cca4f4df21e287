"""Sizes of the model, and which layouts they allow."""

from dataclasses import dataclass

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.rope import DEFAULT_THETA, RopeScaling
from infinipipe_executor.errors import ConfigError, LayoutError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a Llama-like decoder.

    Attributes:
        layers: Transformer layers over all stages.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key/value heads; divides ``heads``.
        head_dim: Width of one head, even.
        ffn: Width of the feed-forward layer.
        vocab: Entries of the vocabulary.
        ties_embeddings: Whether the head is the embedding.
        has_qkv_bias: Whether the query, key and value projections add a bias.
        has_qk_norm: Whether every query and key head goes through an RMSNorm.
        rope_theta: Base of the rotary angles.
        rope_scaling: How the angles are stretched; None for not at all.
        norm_eps: Added to the mean square in RMSNorm.
        dropout: Probability of dropping an element of either residual branch, in [0, 1).

    Raises:
        ConfigError: If a size makes no sense; names the key, the value and the limit.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    ties_embeddings: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    rope_theta: float = DEFAULT_THETA
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model.{key} is {getattr(self, key)}, it must be at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError(f"model.kv_heads is {self.kv_heads}, it must divide model.heads, which is {self.heads}")
        if self.head_dim % 2:
            raise ConfigError(f"model.head_dim is {self.head_dim}, it must be even for rotary positions")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.dropout is {self.dropout}, it must be in [0, 1)")

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together (paper: D_kv)."""
        return self.kv_heads * self.head_dim

    @property
    def shape(self) -> DecoderShape:
        """What the formulas of parameters and memory take."""
        return DecoderShape(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ffn=self.ffn,
            vocab=self.vocab,
            ties_embeddings=self.ties_embeddings,
            has_qkv_bias=self.has_qkv_bias,
            has_qk_norm=self.has_qk_norm,
            dropout=self.dropout,
        )


def check_layout(config: ModelConfig, pp_size: int, sp_size: int) -> None:
    """Refuse a layout that the model cannot be divided into.

    Key/value heads need not divide: they are replicated where they are fewer than ranks.

    Args:
        config: Sizes of the model.
        pp_size: Stages.
        sp_size: Ranks of one stage.

    Raises:
        LayoutError: Lists the sizes that work.
    """
    if not 1 <= pp_size <= config.layers:
        raise LayoutError(
            f"{config.layers} layers cannot be divided among pp_size {pp_size} stages; "
            f"pp_size may be 1 to {config.layers}"
        )
    if sp_size < 1 or config.heads % sp_size:
        raise LayoutError(
            f"{config.heads} query heads cannot be divided among sp_size {sp_size} ranks; "
            f"sp_size may be {_divisors(config.heads)}"
        )


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
