"""Devices by name, with their datasheet rates; what a program really reaches of them is said in ``profile``."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from infinipipe_contract.device_peak import PEAK_FLOPS


class Generation(enum.Enum):
    """Family of devices that run the same attention kernels equally well."""

    AMPERE = "Ampere"
    ADA = "Ada"
    HOPPER = "Hopper"
    BLACKWELL = "Blackwell"


@dataclass(frozen=True, slots=True)
class Device:
    """Datasheet rates of one device, and of the node that its maker sells it in.

    Attributes:
        generation: Family of the device.
        matmul_flops: Dense bf16 floating-point operations per second.
        memory_bytes: Memory, in the datasheet's decimal gigabytes.
        memory_bytes_per_s: Bandwidth of the memory.
        peer_bytes_per_s: Bandwidth to the other devices of the node, one way.
        network_bytes_per_s: Bandwidth out of a node, one way, of all its network cards together.
    """

    generation: Generation
    matmul_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    peer_bytes_per_s: float
    network_bytes_per_s: float


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100": Device(Generation.AMPERE, PEAK_FLOPS["A100"], 80e9, 2.039e12, 300e9, 200e9),
        "a100-40": Device(Generation.AMPERE, PEAK_FLOPS["A100"], 40e9, 1.555e12, 300e9, 200e9),
        "a800": Device(Generation.AMPERE, PEAK_FLOPS["A800"], 80e9, 2.039e12, 200e9, 50e9),
        "h100": Device(Generation.HOPPER, PEAK_FLOPS["H100"], 80e9, 3.35e12, 450e9, 400e9),
        "h800": Device(Generation.HOPPER, PEAK_FLOPS["H800"], 80e9, 3.35e12, 200e9, 400e9),
        "h200": Device(Generation.HOPPER, PEAK_FLOPS["H200"], 141e9, 4.8e12, 450e9, 400e9),
        "h20": Device(Generation.HOPPER, PEAK_FLOPS["H20"], 96e9, 4.0e12, 450e9, 400e9),
        "b200": Device(Generation.BLACKWELL, PEAK_FLOPS["B200"], 180e9, 8.0e12, 900e9, 400e9),
        "l40s": Device(Generation.ADA, PEAK_FLOPS["L40S"], 48e9, 0.864e12, 32e9, 50e9),
    }
)
"""Rates by the makers' datasheets (SXM modules; NVLink's figures halved, since they add both directions up).

Networks: a100 DGX A100 (eight cards of 200 Gb/s); h100, h800, h200, h20, b200 DGX H100 and B200 (eight of 400 Gb/s);
a800 the paper's cluster (one of 400 Gb/s for the eight devices of a node); l40s PCIe 4.0 x16 between devices and one
card of 400 Gb/s. Where a cluster differs, change ``p2p`` and ``all2all`` of the profile.
"""
