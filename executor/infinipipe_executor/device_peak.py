"""Peak rate of a device: what MFU is measured against."""

import torch

from infinipipe_contract.device_peak import known_peak_flops


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
