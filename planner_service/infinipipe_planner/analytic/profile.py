"""An analytic profile: the cost model of a model on a cluster, from datasheet rates and stated efficiencies.

Nobody measured it. It tells which layouts fit and about how fast they are before a machine is there; a measured profile
replaces it afterwards. The efficiencies are the constants below, each with its reason, and every profile's comment
repeats them. Entry point: ``build_profile``.

Left out: the optimizer step; that attention kernels are slower on short heads (below 128).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from infinipipe_contract.model_memory import (
    DecoderShape,
    gathered_bytes,
    held_kv_dim,
    logits_bytes,
    model_state_bytes,
    most_stage_layers,
    parameter_count,
    token_bytes,
)
from infinipipe_contract.profile import (
    Cluster,
    ComputeCost,
    HeadCost,
    LinkCost,
    MemoryCost,
    ModelShape,
    NodeLinks,
    Profile,
    check_profile,
)
from infinipipe_contract.stages import divide_layers_by_cost
from infinipipe_contract.working_memory import working_memory
from infinipipe_planner.analytic.devices import DEVICES, Device, Generation
from infinipipe_planner.errors import PlannerError

DTYPE_BYTES = 2
"""bf16 activations and gathered parameters; master parameters, gradients and moments are fp32."""

MATMUL_EFFICIENCY = 0.70
"""Share of the peak in a layer's projections: matrices thousands wide and high reach 65 to 75 % of it in bf16."""


class AttentionEfficiency(NamedTuple):
    """Shares of the peak that causal attention reaches, counting only the pairs below the diagonal."""

    forward: float
    backward: float


ATTENTION_EFFICIENCY: Mapping[Generation, AttentionEfficiency] = MappingProxyType(
    {
        Generation.AMPERE: AttentionEfficiency(0.58, 0.51),
        Generation.ADA: AttentionEfficiency(0.58, 0.51),
        Generation.HOPPER: AttentionEfficiency(0.37, 0.31),
        Generation.BLACKWELL: AttentionEfficiency(0.16, 0.14),
    }
)
"""FlashAttention-2 on long sequences with heads of 128: about 180 and 160 TFLOP/s on Ampere, for which it was written.
On Hopper it stays at about a third of the peak (its successor's authors say 35 %), and Blackwell is taken to run it at
Hopper's rate, which is careful."""

ATTENTION_BACKWARD_FLOPS_RATIO = 2.5
"""Five matrix products over the pairs in the backward pass, which recomputes the scores, for two in the forward."""

MATMUL_BACKWARD_FLOPS_RATIO = 2.0
"""A gradient of the input and one of the weights."""

MEMORY_EFFICIENCY = 0.80
"""Share of the memory's bandwidth that norms, rotary positions, SwiGLU and copies reach."""

LAUNCH_S_PER_LAYER = 0.4e-3
"""Fixed seconds of one layer's forward pass: some 40 kernels and collectives at 10 us each, launched from Python."""

PEER_EFFICIENCY = 0.80
"""Share of the link between devices of a node that all-to-alls and gathers of megabytes reach."""

NETWORK_EFFICIENCY = 0.90
"""Share of a network card's rate that long messages reach."""

DEFAULT_ATTENDED_TOKENS = 4096.0
"""Tokens that a token attends to in the mean where no lengths are known: half of a sequence of 8K."""

ALL2ALL_LATENCY_S = 20e-6
P2P_LATENCY_S = 30e-6

USABLE_MEMORY_RATIO = 0.92
"""Share of the memory that plans may fill: the rest is for the CUDA context, NCCL's buffers and fragmentation. What
ZeRO-3 gathers is counted with the model state."""


class HardwareError(PlannerError):
    """A cluster or a layout makes no sense, or the model cannot be divided that way; names the value and the limit."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A cluster of equal nodes.

    Attributes:
        device_name: Key of ``DEVICES``.
        nodes: Nodes.
        devices_per_node: Devices of one node.
    """

    device_name: str
    nodes: int
    devices_per_node: int

    @property
    def device(self) -> Device:
        """Rates of one device."""
        return DEVICES[self.device_name]

    @property
    def name(self) -> str:
        """Name for people, such as ``h100-4x8``."""
        return f"{self.device_name}-{self.nodes}x{self.devices_per_node}"

    @property
    def device_count(self) -> int:
        """Devices of the cluster."""
        return self.nodes * self.devices_per_node

    @property
    def peer_bytes_per_s(self) -> float:
        """What one device sends to the others of its node."""
        return PEER_EFFICIENCY * self.device.peer_bytes_per_s

    @property
    def network_bytes_per_s(self) -> float:
        """What one node sends to the others, all its devices together."""
        return NETWORK_EFFICIENCY * self.device.network_bytes_per_s


def layout_problem(shape: DecoderShape, hardware: Hardware, pp_size: int, sp_size: int) -> str | None:
    """Say why a model cannot be laid out on a cluster this way; None if it can."""
    if pp_size * sp_size != hardware.device_count:
        return (
            f"pp_size {pp_size} x sp_size {sp_size} is {pp_size * sp_size} devices, the cluster has "
            f"{hardware.device_count} (an analytic profile is of one replica; cluster.dp_size in it sets their number)"
        )
    if shape.layers < pp_size:
        return f"{shape.layers} layers are fewer than pp_size {pp_size} stages"
    if shape.heads % sp_size:
        return f"{shape.heads} query heads cannot be divided among sp_size {sp_size} ranks"
    per_node = hardware.devices_per_node
    if per_node % sp_size and sp_size % per_node:
        return f"sp_size {sp_size} neither divides the {per_node} devices of a node nor fills whole nodes"
    return None


def build_profile(
    shape: DecoderShape,
    hardware: Hardware,
    pp_size: int,
    sp_size: int,
    *,
    model_name: str,
    attended_tokens: float = DEFAULT_ATTENDED_TOKENS,
    shards_gradients: bool = True,
) -> Profile:
    """Compute a profile; its layers are divided among the stages by the times it tells.

    Args:
        shape: Sizes of the model.
        hardware: The cluster.
        pp_size: Stages.
        sp_size: Ranks of one stage, neighbours within a node first.
        model_name: What people call the model.
        attended_tokens: Tokens that a token attends to in the mean (``mean_attended_tokens``): the longer the
            sequences, the less the head weighs beside a layer.
        shards_gradients: Whether gradients are divided among the ranks of a stage after every chunk (zero3); else every
            rank holds those of the whole stage (zero2).

    Raises:
        HardwareError: If the model cannot be laid out this way.
    """
    problem = layout_problem(shape, hardware, pp_size, sp_size)
    if problem is not None:
        raise HardwareError(problem)
    device = hardware.device
    stages = range(pp_size)
    forward, backward, head = _forward_cost(shape, device), _backward_cost(shape, device), _head_cost(shape, device)
    stage_layers = divide_layers_by_cost(
        shape.layers,
        pp_size,
        head.s_per_token / _layer_s(shape, (forward, backward), attended_tokens),
        most_stage_layers(
            shape,
            pp_size,
            sp_size,
            device.memory_bytes * USABLE_MEMORY_RATIO,
            shards_gradients=shards_gradients,
        ),
    )
    gather_bandwidth = _gather_bytes_per_s(hardware, sp_size)
    profile = Profile(
        name=f"{model_name}-{hardware.name}-pp{pp_size}-sp{sp_size}",
        # Key heads that are replicated are sent and held like heads of their own.
        model=ModelShape(
            shape.layers,
            shape.hidden,
            held_kv_dim(shape, sp_size),
            shape.ffn,
            shape.vocab,
            DTYPE_BYTES,
            None if shape.query_dim == shape.hidden else shape.query_dim,
        ),
        cluster=Cluster(pp_size, sp_size, device.memory_bytes, USABLE_MEMORY_RATIO),
        forward=forward,
        backward=backward,
        all2all=LinkCost(_all2all_bytes_per_s(hardware, sp_size), ALL2ALL_LATENCY_S),
        p2p=LinkCost(_p2p_bytes_per_s(hardware), P2P_LATENCY_S),
        param_gather_s=tuple(
            DTYPE_BYTES * count * (sp_size - 1) / sp_size / gather_bandwidth
            for count in (parameter_count(shape, pp_size, p, stage_layers=stage_layers) for p in stages)
        ),
        memory=MemoryCost(
            token_bytes=token_bytes(shape, DTYPE_BYTES, sp_size),
            logits_bytes=logits_bytes(shape, DTYPE_BYTES),
            model_state_bytes=tuple(
                model_state_bytes(
                    shape, pp_size, sp_size, p, shards_gradients=shards_gradients, stage_layers=stage_layers
                )
                + gathered_bytes(shape, pp_size, p, DTYPE_BYTES, stage_layers=stage_layers)
                for p in stages
            ),
            working=working_memory(shape, DTYPE_BYTES, sp_size),
        ),
        comment=(
            f"{describe_profile(hardware, shards_gradients=shards_gradients)} "
            f"{_describe_division(stage_layers, attended_tokens)}"
        ),
        nodes=NodeLinks(
            devices_per_node=hardware.devices_per_node,
            intra_node_bytes_per_s=hardware.peer_bytes_per_s,
            intra_node_latency_s=ALL2ALL_LATENCY_S,
            inter_node_bytes_per_s=hardware.network_bytes_per_s,
            inter_node_latency_s=P2P_LATENCY_S,
        ),
        layer_division=stage_layers,
        head=head,
    )
    check_profile(profile)
    return profile


def describe_profile(hardware: Hardware, *, shards_gradients: bool = True) -> str:
    """Say where the numbers of a profile come from, with every efficiency."""
    gradients = "" if shards_gradients else " Every device holds the whole gradients of its stage (zero2)."
    attention = ATTENTION_EFFICIENCY[hardware.device.generation]
    return (
        f"Analytic, not measured: datasheet rates of {hardware.nodes} x {hardware.devices_per_node} "
        f"{hardware.device_name} times these efficiencies: matrix products {MATMUL_EFFICIENCY:g}, attention "
        f"{attention.forward:g} forward and {attention.backward:g} backward, memory {MEMORY_EFFICIENCY:g}, links in a "
        f"node {PEER_EFFICIENCY:g}, network {NETWORK_EFFICIENCY:g}; {LAUNCH_S_PER_LAYER * 1e3:g} ms a layer and pass "
        f"to launch kernels.{gradients}"
    )


def _describe_division(stage_layers: tuple[int, ...], attended_tokens: float) -> str:
    return (
        f"Stages of {', '.join(map(str, stage_layers))} layers, by cost: the last one also runs the head; a token "
        f"attends to {attended_tokens:,.0f} tokens in the mean."
    )


def _layer_s(shape: DecoderShape, passes: tuple[ComputeCost, ...], attended_tokens: float) -> float:
    """Seconds of one token in one layer on one device; its pairs are counted twice in Eq. 1."""
    return sum(2 * cost.alpha1 * attended_tokens + cost.alpha2 for cost in passes) / shape.layers


def _forward_cost(shape: DecoderShape, device: Device) -> ComputeCost:
    """Seconds of the forward pass on one device (Eq. 1).

    Below the diagonal, s tokens attend to s^2 / 2 pairs, each worth 4 operations per element of the queries (scores and
    weighted values); every parameter of a matrix is worth 2 operations a token, and what is not a matrix product reads
    or writes memory.
    """
    attention_flops = device.matmul_flops * ATTENTION_EFFICIENCY[device.generation].forward
    return ComputeCost(
        alpha1=2 * shape.query_dim * shape.layers / attention_flops,
        alpha2=_matmul_s(shape, device) + _memory_s(shape, device),
        beta1=LAUNCH_S_PER_LAYER * shape.layers,
    )


def _backward_cost(shape: DecoderShape, device: Device) -> ComputeCost:
    """Seconds of the backward pass without recompute on one device (Eq. 1)."""
    attention_flops = device.matmul_flops * ATTENTION_EFFICIENCY[device.generation].backward
    return ComputeCost(
        alpha1=ATTENTION_BACKWARD_FLOPS_RATIO * 2 * shape.query_dim * shape.layers / attention_flops,
        alpha2=MATMUL_BACKWARD_FLOPS_RATIO * _matmul_s(shape, device) + 2 * _memory_s(shape, device),
        beta1=2 * LAUNCH_S_PER_LAYER * shape.layers,
    )


def _matmul_s(shape: DecoderShape, device: Device) -> float:
    """Seconds of one token's matrix products in all layers."""
    return 2 * shape.layers * shape.layer_matrix_count / (device.matmul_flops * MATMUL_EFFICIENCY)


def _head_cost(shape: DecoderShape, device: Device) -> HeadCost:
    """Seconds of one token behind the layers on one device.

    Beside the projection, the forward pass reads the logits twice, writes their gradient over them, and reads and
    writes what the norm works on; the backward pass does the norm's part twice.
    """
    matmul_s = 2 * shape.vocab * shape.hidden / (device.matmul_flops * MATMUL_EFFICIENCY)
    element_s = DTYPE_BYTES / (device.memory_bytes_per_s * MEMORY_EFFICIENCY)
    return HeadCost(
        forward_s_per_token=matmul_s + element_s * (3 * shape.vocab + 2 * shape.hidden),
        backward_s_per_token=MATMUL_BACKWARD_FLOPS_RATIO * matmul_s + element_s * 4 * shape.hidden,
    )


def _memory_s(shape: DecoderShape, device: Device) -> float:
    """Seconds that one token's forward pass spends between matrix products, waiting for memory.

    Elements read and written in a layer: both norms 4 and both residual sums 6 of the residual stream's width; rotary
    positions 2 of queries and keys; the copies around the all-to-alls 2 of queries, keys, values and the output of
    attention; SwiGLU 3 of the feed-forward width.
    """
    elements = 10 * shape.hidden + 6 * (shape.query_dim + shape.kv_dim) + 3 * shape.ffn
    return DTYPE_BYTES * elements * shape.layers / (device.memory_bytes_per_s * MEMORY_EFFICIENCY)


def _all2all_bytes_per_s(hardware: Hardware, sp_size: int) -> float:
    """Bandwidth of one device in an all-to-all of Eq. 3; over several nodes the part that leaves the node rules."""
    if sp_size <= hardware.devices_per_node:
        return hardware.peer_bytes_per_s
    leaving_ratio = (sp_size - hardware.devices_per_node) / sp_size
    share = hardware.network_bytes_per_s / hardware.devices_per_node
    return min(hardware.peer_bytes_per_s, share / leaving_ratio)


def _p2p_bytes_per_s(hardware: Hardware) -> float:
    """Bandwidth of one device to the next stage, which for some or all stages is in another node."""
    if hardware.nodes == 1:
        return hardware.peer_bytes_per_s
    return hardware.network_bytes_per_s / hardware.devices_per_node


def _gather_bytes_per_s(hardware: Hardware, sp_size: int) -> float:
    """Bandwidth of a gather: over several nodes, data enters a node once and is passed on inside."""
    if sp_size <= hardware.devices_per_node:
        return hardware.peer_bytes_per_s
    return min(hardware.peer_bytes_per_s, hardware.network_bytes_per_s)
