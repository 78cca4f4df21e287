"""One transformer layer: attention and feed-forward, each behind a norm and beside a residual branch.

What a layer saves for its backward pass is counted in ``memory``.
"""

import torch
from torch import Tensor, nn

from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.rotary import rotate
from infinipipe_executor.pipeline.chunk_attention import chunk_attention
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_kernels.rms_norm import rms_norm
from infinipipe_kernels.swiglu import swiglu


class RmsNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[tokens, width]``."""
        return rms_norm(x, self.weight, self.eps)


class HeadNorm(RmsNorm):
    """The same norm over every head for itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[tokens, heads, head_dim]``."""
        return super().forward(x.flatten(0, 1)).view_as(x)


class Attention(nn.Module):
    """Grouped-query attention over the slices of a chunk and their contexts."""

    def __init__(self, config: ModelConfig, stage_layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.stage_layer = stage_layer
        self.q = nn.Linear(config.hidden, config.query_dim, bias=config.has_qkv_bias)
        self.k = nn.Linear(config.hidden, config.kv_dim, bias=config.has_qkv_bias)
        self.v = nn.Linear(config.hidden, config.kv_dim, bias=config.has_qkv_bias)
        self.q_norm = HeadNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else None
        self.k_norm = HeadNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else None
        self.output = nn.Linear(config.query_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, chunk_pass: ChunkPass) -> Tensor:
        """Attend: ``[tokens, hidden]`` of this rank's share to the same."""
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, chunk_pass.rotary), rotate(k, chunk_pass.rotary)
        q, k, v = chunk_pass.exchange.tokens_to_heads(q, k, v)
        attended = chunk_attention(q, k, v, chunk_pass, self.stage_layer)
        attended = chunk_pass.exchange.heads_to_tokens(attended)
        projected: Tensor = self.output(attended.flatten(1))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1] // self.head_dim, self.head_dim)


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[tokens, hidden]`` to the same."""
        mapped: Tensor = self.down(swiglu(self.gate(x), self.up(x)))
        return mapped


class Layer(nn.Module):
    """One transformer layer.

    Args:
        config: Sizes of the model.
        stage_layer: Index of the layer within its stage, from 0; names its place in the slice cache.
    """

    def __init__(self, config: ModelConfig, stage_layer: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = RmsNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, stage_layer)
        self.mlp_norm = RmsNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, chunk_pass: ChunkPass) -> Tensor:
        """Map ``[tokens, hidden]`` of this rank's share of a chunk to the same."""
        x = x + self._drop(self.attention(self.attention_norm(x), chunk_pass))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.dropout:
            return branch
        # The native operator saves one byte an element on every device.
        return torch.native_dropout(branch, self.dropout, self.training)[0]
