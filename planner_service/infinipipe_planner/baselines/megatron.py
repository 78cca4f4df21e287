"""Baseline ``megatron``: tensor parallelism inside nodes, ring context parallelism between them, 1F1B over the rest.

Models (Megatron-LM as the paper sets it up, V-A): the tensor-parallel group is a node and shards sequences as well
(four all-gathers or reduce-scatters a layer and pass); ``cp_size`` nodes share a sequence and pass keys and values
round a ring, hidden behind attention as far as attention lasts (short sequences have little of it); the remaining
factor of the devices is pipeline stages. Sequences are packed up to the longest one, so a micro-batch is a context. The
number of recomputed layers is fixed for the context, whatever the batch holds. Gradients are reduced and parameters
gathered once a step (ZeRO-1).

Leaves out: that the last stage runs the head alone (its time is spread over all), padding to multiples of the ring,
imbalance of causal attention in the ring, overlap of tensor-parallel collectives with computation, data parallelism
(a batch of these contexts fills the devices without it).
"""

from collections.abc import Sequence

from infinipipe_contract.profile import ComputeCost, NodeLinks, Profile, derive_node_links
from infinipipe_contract.text import count_of
from infinipipe_planner.baselines.breakdown import Breakdown
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.links import parameter_bytes
from infinipipe_planner.baselines.sequence_groups import MicroBatch, micro_batch
from infinipipe_planner.chunking.fixed_size import pack_whole


def estimate_megatron(
    lengths_tokens: Sequence[int],
    profile: Profile,
    cp_size: int | None = None,
    recompute_layer_count: int | None = None,
) -> Breakdown:
    """Estimate one training step.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model; its stages play no part.
        cp_size: Nodes that share a sequence, a divisor of all; None means the best one for the batch.
        recompute_layer_count: Layers of the model that every micro-batch recomputes; None means the fewest with which
            the longest sequence fits.

    Raises:
        BaselineDoesNotFitError: If the longest sequence does not fit that way.
    """
    nodes = derive_node_links(profile)
    node_count = max(1, profile.device_count // nodes.devices_per_node)
    if cp_size is not None and (cp_size < 1 or node_count % cp_size):
        raise ValueError(f"cp_size is {cp_size}, it must be a divisor of the cluster's {node_count} nodes")
    cp_sizes = [size for size in range(1, node_count + 1) if node_count % size == 0] if cp_size is None else [cp_size]
    layers = profile.model.layers
    tried = range(layers + 1) if recompute_layer_count is None else (recompute_layer_count,)
    longest = max(lengths_tokens)
    estimates = []
    for costs in (_Costs(profile, nodes, node_count, size) for size in cp_sizes):
        fitting = (count for count in tried if costs.peak_bytes(longest, count) <= profile.usable_memory_bytes)
        layer_count = next(fitting, None)
        if layer_count is not None:
            estimates.append(_estimate(lengths_tokens, costs, layer_count))
    if not estimates:
        least_bytes = min(_Costs(profile, nodes, node_count, size).peak_bytes(longest, tried[-1]) for size in cp_sizes)
        raise BaselineDoesNotFitError(
            f"the longest sequence, {longest} tokens, needs {least_bytes:,.0f} bytes a device with {tried[-1]} of "
            f"{layers} layers recomputed, {profile.usable_memory_bytes:,.0f} are usable"
        )
    return min(estimates, key=lambda estimate: estimate.total_s)


def _estimate(lengths_tokens: Sequence[int], costs: "_Costs", layer_count: int) -> Breakdown:
    longest, stage_count = max(lengths_tokens), costs.stage_count
    batches = [
        micro_batch(costs.group_size, (piece.length_tokens for piece in chunk.slices))
        for chain in pack_whole(lengths_tokens, longest)
        for chunk in chain
    ]
    parts = [costs.parts_s(batch, layer_count) for batch in batches]
    work_s, fixed_s, recompute_s, exchange_s = (sum(of_part) / stage_count for of_part in zip(*parts, strict=True))
    return Breakdown(
        work_s=work_s,
        fixed_s=fixed_s,
        recompute_s=recompute_s,
        exchange_s=exchange_s,
        zero_s=costs.step_reduce_s(),
        # Warm-up and cool-down at the pace of the slowest micro-batch, as in Eq. 13.
        idle_s=(stage_count - 1) * max(map(sum, parts)) / stage_count,
        peak_bytes=costs.peak_bytes(longest, layer_count),
        configuration=(
            f"tp {costs.tp_size}, cp {costs.cp_size}, pp {stage_count}, {count_of(len(batches), 'micro-batch')}, "
            f"{count_of(layer_count, 'layer')} recomputed"
        ),
        hidden_zero_s=0.0,
    )


class _Costs:
    """Costs of micro-batches on the group of tp x cp devices of one stage, as if it held all layers."""

    def __init__(self, profile: Profile, nodes: NodeLinks, node_count: int, cp_size: int) -> None:
        self.profile, self.nodes, self.cp_size = profile, nodes, cp_size
        self.tp_size = profile.device_count // node_count
        self.stage_count = node_count // cp_size
        self.group_size = self.tp_size * cp_size

    def parts_s(self, batch: MicroBatch, layer_count: int) -> tuple[float, float, float, float]:
        """Forward and backward of a micro-batch: work, fixed, recompute and uncovered exchange seconds."""
        profile = self.profile
        tensor_s = self._tensor_s(batch.tokens)
        forward_s, backward_s = self._work_s(profile.forward, batch), self._work_s(profile.backward, batch)
        # Backward, gradients of keys and values travel with them.
        forward_ring_s = self._ring_s(profile.forward, batch, passes=1)
        backward_ring_s = self._ring_s(profile.backward, batch, passes=2)
        whole_forward_s = forward_s + profile.forward.beta1 + tensor_s + forward_ring_s
        return (
            forward_s + backward_s + profile.head.s_per_token * batch.tokens / self.group_size,
            profile.forward.beta1 + profile.backward.beta1,
            layer_count / profile.model.layers * whole_forward_s,
            2 * tensor_s + forward_ring_s + backward_ring_s,
        )

    def step_reduce_s(self) -> float:
        """Reduce gradients and gather parameters once, among the nodes that hold the same layers (ZeRO-1)."""
        if self.cp_size == 1:
            return 0.0
        crossing_bytes = parameter_bytes(self.profile) / self.stage_count * (1 - 1 / self.cp_size)
        return 2 * crossing_bytes / self.nodes.inter_node_bytes_per_s

    def peak_bytes(self, tokens: int, layer_count: int) -> float:
        """Bytes of one device when every stage holds as many micro-batches of that size as there are stages."""
        profile, model = self.profile, self.profile.model
        held = (1 - layer_count / model.layers) * profile.memory.token_bytes
        held += model.dtype_bytes * model.hidden * layer_count + profile.memory.logits_bytes
        # Parameters and gradients are divided among the devices of a tensor-parallel group and the stages only.
        whole_bytes = 2 * parameter_bytes(profile)
        state_bytes = sum(profile.memory.model_state_bytes) * profile.cluster.sp_size
        divided_bytes = max(state_bytes - whole_bytes, 0.0) / profile.device_count
        return whole_bytes / (self.tp_size * self.stage_count) + divided_bytes + held * tokens / self.group_size

    def _work_s(self, cost: ComputeCost, batch: MicroBatch) -> float:
        return (cost.alpha1 * batch.quadratic + cost.alpha2 * batch.tokens) / self.group_size

    def _tensor_s(self, tokens: int) -> float:
        """Four collectives a layer inside a node, each over a node's share of the tokens."""
        if self.tp_size == 1:
            return 0.0
        model, nodes = self.profile.model, self.nodes
        volume_bytes = model.dtype_bytes * model.hidden * tokens / self.cp_size * (1 - 1 / self.tp_size)
        return 4 * model.layers * (volume_bytes / nodes.intra_node_bytes_per_s + nodes.intra_node_latency_s)

    def _ring_s(self, cost: ComputeCost, batch: MicroBatch, passes: int) -> float:
        """Ring exchange of keys and values that attention does not hide; a node's devices share its link."""
        model, nodes, steps = self.profile.model, self.nodes, self.cp_size - 1
        share_bytes = passes * 2 * model.dtype_bytes * model.kv_dim * batch.tokens / self.cp_size
        ring_s = model.layers * steps * (share_bytes / nodes.inter_node_bytes_per_s + nodes.inter_node_latency_s)
        attention_s = cost.alpha1 * batch.quadratic / self.group_size
        # While the last of cp_size blocks is computed nothing is under way.
        return max(0.0, ring_s - attention_s * steps / self.cp_size)
