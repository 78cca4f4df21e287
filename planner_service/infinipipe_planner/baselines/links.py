"""Communication of systems whose groups cross nodes.

Inside a node every device has a bandwidth of its own, between nodes all devices of a node share one link
(``NodeLinks``). Collectives are counted at the bytes that must cross, whatever their algorithm: rather too fast than
too slow.
"""

from infinipipe_contract.profile import Profile, derive_node_links


def parameter_bytes(profile: Profile) -> float:
    """Bytes of the whole model's parameters as they are gathered, with a head of its own."""
    model = profile.model
    layer = 2 * model.hidden * model.heads_dim + 3 * model.hidden * model.ffn
    return model.dtype_bytes * (model.layers * layer + 2 * model.vocab * model.hidden)


def all2all_s(profile: Profile, tokens: float, group_size: int) -> float:
    """All-to-all of one pass over all layers within a group (Eq. 3 with a single stage).

    Args:
        profile: Model and links.
        tokens: Tokens of the micro-batch.
        group_size: Devices that share them; consecutive, so that the group fills its nodes.
    """
    if group_size == 1:
        return 0.0
    model, nodes = profile.model, derive_node_links(profile)
    inside = min(group_size, nodes.devices_per_node)
    volume_bytes = model.dtype_bytes * model.heads_dim * tokens / group_size
    once_s = volume_bytes * inside / group_size / nodes.intra_node_bytes_per_s
    latency_s = nodes.intra_node_latency_s
    if inside < group_size:
        crossing_bytes = volume_bytes * inside * (group_size - inside) / group_size
        once_s = max(once_s, crossing_bytes / nodes.inter_node_bytes_per_s)
        latency_s = nodes.inter_node_latency_s
    return (once_s + 2 * latency_s) * 2 * model.layers


def gather_s(profile: Profile) -> float:
    """Gather the whole model's parameters on every device of the cluster (ZeRO-3); reducing gradients takes as long."""
    nodes, device_count = derive_node_links(profile), profile.device_count
    total_bytes = parameter_bytes(profile)
    once_s = total_bytes * (1 - 1 / device_count) / nodes.intra_node_bytes_per_s
    node_count = max(1, device_count // nodes.devices_per_node)
    crossing_bytes = total_bytes * (1 - 1 / node_count)
    return max(once_s, crossing_bytes / nodes.inter_node_bytes_per_s)
