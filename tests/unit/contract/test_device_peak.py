"""Peak rates by the names that CUDA gives to devices."""

import pytest

from infinipipe_contract.device_peak import known_peak_flops


@pytest.mark.parametrize(
    ("device_name", "peak_flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_card_of_less_power_is_not_taken_for_the_module_of_the_same_chip(
    device_name: str, peak_flops: float | None
) -> None:
    assert known_peak_flops(device_name) == peak_flops
