"""Sequence parallelism inside a stage (Ulysses): shares of tokens outside attention, shares of heads inside.

One all-to-all brings queries, keys and values from "some tokens, all heads" to "all tokens, some heads"; one brings the
output back. Shares are uneven where the tokens do not divide; a rank without tokens takes part all the same. Key/value
heads that are fewer than ranks are replicated before, and their gradients summed by autograd behind.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class HeadExchange:
    """The exchange for one chunk.

    Attributes:
        group: Ranks of the stage.
        shares_tokens: Tokens of every rank, in order.
        sp_rank: Place of this rank within the stage.
    """

    group: dist.ProcessGroup
    shares_tokens: tuple[int, ...]
    sp_rank: int

    def tokens_to_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bring this rank its heads of all tokens.

        Args:
            q: ``[own tokens, heads, head_dim]``; the heads are a multiple of the ranks.
            k: ``[own tokens, key heads, head_dim]``.
            v: Same shape as ``k``.

        Returns:
            ``[tokens of the chunk, heads / ranks, head_dim]``, and keys and values likewise; where there are fewer key
            heads than ranks, neighbouring ranks hold the same ones.
        """
        ranks = len(self.shares_tokens)
        if ranks == 1:
            return q, k, v
        copies = math.lcm(k.shape[1], ranks) // k.shape[1]
        parts = [_split_heads(part, ranks) for part in (q, _replicate(k, copies), _replicate(v, copies))]
        gathered = _gather_tokens(torch.cat(parts, dim=2), self)
        own_q, own_k, own_v = torch.split(gathered, [part.shape[2] for part in parts], dim=1)
        return own_q, own_k, own_v

    def heads_to_tokens(self, out: Tensor) -> Tensor:
        """Bring this rank all heads of its tokens.

        Args:
            out: ``[tokens of the chunk, heads / ranks, head_dim]``.

        Returns:
            ``[own tokens, heads, head_dim]``.
        """
        if len(self.shares_tokens) == 1:
            return out
        return _gather_heads(out, self).flatten(1, 2)


class _TokensToHeads(torch.autograd.Function):
    """``[own tokens, ranks, heads, head_dim]`` to ``[tokens of the chunk, heads, head_dim]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HeadExchange) -> Tensor:  # noqa: ANN401
        ctx.exchange = exchange
        return _tokens_to_heads(x, exchange)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _heads_to_tokens(grads[0], ctx.exchange), None


_gather_tokens = cast("Callable[..., Tensor]", _TokensToHeads.apply)


class _HeadsToTokens(torch.autograd.Function):
    """The inverse of ``_TokensToHeads``; both only move elements, so each is the other's backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HeadExchange) -> Tensor:  # noqa: ANN401
        ctx.exchange = exchange
        return _heads_to_tokens(x, exchange)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _tokens_to_heads(grads[0], ctx.exchange), None


_gather_heads = cast("Callable[..., Tensor]", _HeadsToTokens.apply)


def _tokens_to_heads(x: Tensor, exchange: HeadExchange) -> Tensor:
    shares = list(exchange.shares_tokens)
    outgoing = x.transpose(0, 1).contiguous().flatten(0, 1)
    incoming = x.new_empty(sum(shares), *x.shape[2:])
    splits = [shares[exchange.sp_rank]] * len(shares)
    dist.all_to_all_single(incoming, outgoing, shares, splits, group=exchange.group)
    return incoming


def _heads_to_tokens(x: Tensor, exchange: HeadExchange) -> Tensor:
    shares = list(exchange.shares_tokens)
    own = shares[exchange.sp_rank]
    incoming = x.new_empty(len(shares) * own, *x.shape[1:])
    dist.all_to_all_single(incoming, x.contiguous(), [own] * len(shares), shares, group=exchange.group)
    return incoming.view(len(shares), own, *x.shape[1:]).transpose(0, 1).contiguous()


def _split_heads(x: Tensor, ranks: int) -> Tensor:
    return x.view(x.shape[0], ranks, x.shape[1] // ranks, x.shape[2])


def _replicate(x: Tensor, copies: int) -> Tensor:
    """Repeat every head; written without an index, which autograd would save."""
    return x if copies == 1 else x.unsqueeze(2).expand(-1, -1, copies, -1).flatten(1, 2)
