"""How far two tensors are apart."""

import torch
from torch import Tensor

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Of single operators, relative to the largest element: about a hundred roundings of the type."""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected element; absolute where all expected are 0."""
    assert actual.shape == expected.shape
    if not expected.numel():
        return 0.0
    difference = (actual.double() - expected.double()).abs().max().item()
    scale = expected.double().abs().max().item()
    return difference / scale if scale else difference
