"""Rotary positions: queries and keys are turned by an angle that grows with the position within the sequence."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from infinipipe_executor.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosine and sine of every token's angles, ``[tokens, 1, head_dim / 2]``, in at least fp32.

    Made once per chunk and stage and shared by its layers.
    """

    cos: Tensor
    sin: Tensor


def rotary_table(positions: Tensor, config: ModelConfig, dtype: torch.dtype) -> RotaryTable:
    """Compute the angles of some tokens.

    Args:
        positions: int64 ``[tokens]``: positions within the sequence, not within the chunk.
        config: Head width, base of the angles and how they are stretched.
        dtype: Type of the activations; angles are at least fp32, because bf16 cannot tell large positions apart.
    """
    wide = torch.promote_types(dtype, torch.float32)
    # In fp64 up to the angle, whatever the activations are: position * frequency loses digits at long contexts.
    angles = positions.to(torch.float64)[:, None, None] * _frequencies(config, positions.device)
    return RotaryTable(angles.cos().to(wide), angles.sin().to(wide))


def _frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Angles of one position, fp64 ``[head_dim / 2]``; stretched as Llama 3 does where the model says so."""
    half = config.head_dim // 2
    frequencies = config.rope_theta ** -(torch.arange(half, dtype=torch.float64, device=device) / half)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    waves = scaling.original_tokens * frequencies / (2 * math.pi)  # how many fit into the original context
    kept = (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return frequencies * torch.lerp(torch.full_like(kept, 1 / scaling.factor), torch.ones_like(kept), kept.clamp(0, 1))


class _Rotate(torch.autograd.Function):
    """Rotation, whose backward pass is the rotation by the negative angle; saves nothing but the shared table."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: RotaryTable) -> Tensor:  # noqa: ANN401
        ctx.table = table
        return _turn(x, table.cos, table.sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _turn(grads[0], ctx.table.cos, -ctx.table.sin), None


_rotate = cast("Callable[..., Tensor]", _Rotate.apply)


def rotate(x: Tensor, table: RotaryTable) -> Tensor:
    """Turn queries or keys.

    Args:
        x: ``[tokens, heads, head_dim]``; the first half of a head is turned against the second.
        table: Angles of the same tokens.

    Returns:
        Same shape and type.
    """
    return _rotate(x, table)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    turned_first, turned_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin)
    return turned.to(x.dtype)
