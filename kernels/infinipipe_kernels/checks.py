"""Checks that the operators share."""

import torch
from torch import Tensor


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type for sums and row statistics: at least fp32."""
    return torch.promote_types(dtype, torch.float32)


def require_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Refuse a tensor of another shape; None allows any size of that dimension.

    Raises:
        ValueError: With the name, the shape and what it must be.
    """
    matches = tensor.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("*" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(tensor.shape)}, it must be [{wanted}]")


def require_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Refuse a tensor of another type.

    Raises:
        ValueError: With the name, the type and what it must be.
    """
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}, it must be {dtype}")


def require_floating(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that is not floating point.

    Raises:
        ValueError: With the name and the type.
    """
    if not tensor.is_floating_point():
        raise ValueError(f"{name} is {tensor.dtype}, it must be floating point")
