"""Profiles with known numbers."""

import dataclasses

from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile


def round_profile(
    *, pp_size: int = 2, sp_size: int = 2, layers: int = 8, device_memory_bytes: float = 1e9, beta1: float = 0.0
) -> Profile:
    """Build a profile of small round numbers, so that a test can compute by hand.

    Times: attention 1 s a token pair, the rest 10 s a token. Memory: 400 bytes a token over all layers, 20 bytes of
    logits, 1000 bytes of model states.
    """
    return Profile(
        name="round",
        model=ModelShape(layers=layers, hidden=8, kv_dim=4, ffn=16, vocab=100, dtype_bytes=2),
        cluster=Cluster(
            pp_size=pp_size, sp_size=sp_size, device_memory_bytes=device_memory_bytes, usable_memory_ratio=1.0
        ),
        forward=ComputeCost(alpha1=1.0, alpha2=10.0, beta1=beta1),
        backward=ComputeCost(alpha1=2.0, alpha2=20.0, beta1=2 * beta1),
        all2all=LinkCost(bandwidth_bytes_per_s=48.0, latency_s=0.25),
        p2p=LinkCost(bandwidth_bytes_per_s=16.0, latency_s=0.5),
        param_gather_s=(0.0,) * pp_size,
        memory=MemoryCost(token_bytes=400.0, logits_bytes=20.0, model_state_bytes=(1000.0,) * pp_size),
    )


def llama_profile(*, pp_size: int = 4, sp_size: int = 8, device_memory_bytes: float = 80e9) -> Profile:
    """Build the profile of a 7B Llama on A800-class devices: datasheet rates times usual efficiencies."""
    return Profile(
        name="llama-7b",
        model=ModelShape(layers=32, hidden=4096, kv_dim=4096, ffn=11008, vocab=128256, dtype_bytes=2),
        cluster=Cluster(
            pp_size=pp_size, sp_size=sp_size, device_memory_bytes=device_memory_bytes, usable_memory_ratio=0.92
        ),
        forward=ComputeCost(alpha1=1.5e-9, alpha2=6e-5, beta1=0.013),
        backward=ComputeCost(alpha1=4e-9, alpha2=1.2e-4, beta1=0.026),
        all2all=LinkCost(bandwidth_bytes_per_s=1.6e11, latency_s=2e-5),
        p2p=LinkCost(bandwidth_bytes_per_s=6.25e9, latency_s=3e-5),
        param_gather_s=(0.02,) * pp_size,
        memory=MemoryCost(token_bytes=4.2e6, logits_bytes=513024.0, model_state_bytes=(5e9,) * pp_size),
    )


def small_head_profile(*, device_memory_bytes: float) -> Profile:
    """Build a profile with few key heads and a small vocabulary: little stays when everything is recomputed."""
    profile = llama_profile(device_memory_bytes=device_memory_bytes)
    return dataclasses.replace(
        profile,
        model=dataclasses.replace(profile.model, kv_dim=128),
        memory=dataclasses.replace(profile.memory, logits_bytes=5000.0),
    )
