"""Peak rate of a device: what MFU is measured against."""

from collections.abc import Sequence

import torch

# Dense bf16 rates by the makers' datasheets, tera-operations per second, sparsity not counted; the first name that is
# part of the device's own counts. The same chip on a card of less power comes first.
_PEAK_TFLOPS: Sequence[tuple[str, float]] = (
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H200 NVL", 835.0),
    ("H100", 989.0),
    ("H800 PCIe", 756.0),
    ("H800", 989.0),
    ("H200", 989.0),
    ("H20", 148.0),
    ("B200", 2250.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
)


def device_peak_flops(device: torch.device, dtype: torch.dtype, given_tflops: float | None) -> float | None:
    """Tell the operations per second that a device could reach.

    Args:
        device: Device of this rank.
        dtype: Type of the computation; rates are known for those of 16 bits.
        given_tflops: ``[cluster] device_peak_tflops``, which counts more than what is known.

    Returns:
        Operations per second; None where nobody has said and the device is not known.
    """
    if given_tflops is not None:
        return given_tflops * 1e12
    if device.type != "cuda" or dtype.itemsize != 2:
        return None
    return known_peak_flops(torch.cuda.get_device_name(device))


def known_peak_flops(device_name: str) -> float | None:
    """Look the name of a CUDA device up; None where it is not known."""
    return next((1e12 * tflops for name, tflops in _PEAK_TFLOPS if name in device_name), None)
