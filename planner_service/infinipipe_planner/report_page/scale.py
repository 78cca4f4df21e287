"""Axes: round numbers to mark."""

import math


def ticks(end: float, count: int = 6) -> list[float]:
    """Choose about ``count`` round numbers from 0 to ``end``."""
    if end <= 0:
        return [0.0]
    rough = end / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    return [round(index * step, 12) for index in range(math.floor(end / step + 1e-9) + 1)]
