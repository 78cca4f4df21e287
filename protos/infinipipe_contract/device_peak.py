"""Peak rates of devices by their makers' datasheets: what a dry run counts with, and what MFU is measured against."""

from collections.abc import Mapping
from types import MappingProxyType

PEAK_FLOPS: Mapping[str, float] = MappingProxyType(
    {
        "H100 PCIe": 756e12,
        "H100 NVL": 835e12,
        "H200 NVL": 835e12,
        "H100": 989e12,
        "H800 PCIe": 756e12,
        "H800": 989e12,
        "H200": 989e12,
        "H20": 148e12,
        "B200": 2250e12,
        "A100": 312e12,
        "A800": 312e12,
        "L40S": 362e12,
    }
)
"""Dense bf16 operations per second, sparsity not counted, by a part of the device's name.

The first that fits counts: the same chip on a card of less power comes before it.
"""


def known_peak_flops(device_name: str) -> float | None:
    """Look the name of a CUDA device up; None where it is not known."""
    return next((flops for name, flops in PEAK_FLOPS.items() if name in device_name), None)
