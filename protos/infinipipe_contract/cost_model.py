"""Time and memory of one chunk on one stage (paper, Eqs. 1 to 5 and 9 to 11).

The planner decides with these numbers and both sides check plans with them, so they live in the contract.
"""

from infinipipe_contract.plan import ActionKind, Chunk
from infinipipe_contract.profile import ComputeCost, Profile


class CostModel:
    """Costs of chunks under one profile. Stages are 0-based; all times in seconds, memory in bytes per device."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.stage_layers = profile.stage_layers
        # The equations are of a stage with its even share of the layers; 1 where layers divide evenly.
        even_layers = profile.model.layers / profile.cluster.pp_size
        self.stage_shares = tuple(layers / even_layers for layers in self.stage_layers)

    def compute_s(self, cost: ComputeCost, chunk: Chunk) -> float:
        """Computation of one pass over a stage with its even share of the layers (Eq. 1).

        Only a slice with context has a start token, so one sum serves the slice with context and the others.
        """
        quadratic = sum(piece.end_token**2 - piece.start_token**2 for piece in chunk.slices)
        return self.work_s(cost, quadratic, chunk.token_count)

    def work_s(self, cost: ComputeCost, quadratic: float, tokens: float) -> float:
        """Computation of one pass from its two sums: token pairs (quadratic) and tokens (Eq. 1)."""
        share = (cost.alpha1 * quadratic + cost.alpha2 * tokens) / self.profile.device_count
        return share + cost.beta1 / self.profile.cluster.pp_size

    def all2all_s(self, tokens: float) -> float:
        """All-to-all of one pass over a stage with its even share (Eq. 3); none where one rank holds all heads."""
        profile, model = self.profile, self.profile.model
        if profile.cluster.sp_size == 1:
            return 0.0
        volume_bytes = model.dtype_bytes * model.heads_dim * tokens / profile.cluster.sp_size
        link = profile.all2all
        once_s = volume_bytes / link.bandwidth_bytes_per_s + 2 * link.latency_s
        return once_s * 2 * model.layers / profile.cluster.pp_size

    def head_s(self, kind: ActionKind, tokens: float, stage_index: int) -> float:
        """Time of a pass behind the layers; 0 on all stages but the last. The paper leaves it out."""
        cluster, head = self.profile.cluster, self.profile.head
        if stage_index != cluster.pp_size - 1:
            return 0.0
        per_token_s = head.forward_s_per_token if kind is ActionKind.FORWARD else head.backward_s_per_token
        return per_token_s * tokens / cluster.sp_size

    def pass_s(self, kind: ActionKind, stage_index: int, compute_s: float, all2all_s: float, head_s: float) -> float:
        """One pass over a stage without recompute (Eq. 4) from its parts, those of the layers for an even stage.

        ZeRO-3 gathers parameters beside the computation, and backward also reduces gradients: the longer counts.
        """
        share = self.stage_shares[stage_index]
        gather_s = self.profile.param_gather_s[stage_index]
        if kind is ActionKind.BACKWARD:
            gather_s *= 2
        return max(share * compute_s + head_s, gather_s) + share * all2all_s

    def forward_s(self, chunk: Chunk, stage_index: int) -> float:
        """Forward pass (Eq. 4)."""
        head_s = self.head_s(ActionKind.FORWARD, chunk.token_count, stage_index)
        return self._chunk_s(ActionKind.FORWARD, chunk, stage_index, head_s)

    def backward_s(self, chunk: Chunk, stage_index: int, recompute_layer_count: int) -> float:
        """Backward pass with its recompute (Eqs. 4 and 11)."""
        head_s = self.head_s(ActionKind.BACKWARD, chunk.token_count, stage_index)
        base_s = self._chunk_s(ActionKind.BACKWARD, chunk, stage_index, head_s)
        return base_s + self.recompute_s(chunk, stage_index, recompute_layer_count)

    def _chunk_s(self, kind: ActionKind, chunk: Chunk, stage_index: int, head_s: float) -> float:
        cost = self.profile.forward if kind is ActionKind.FORWARD else self.profile.backward
        return self.pass_s(kind, stage_index, self.compute_s(cost, chunk), self.all2all_s(chunk.token_count), head_s)

    def recompute_s(self, chunk: Chunk, stage_index: int, recompute_layer_count: int) -> float:
        """Recompute of some layers of a stage (Eq. 11); the head is never recomputed."""
        if not recompute_layer_count:
            return 0.0
        forward_s = self._chunk_s(ActionKind.FORWARD, chunk, stage_index, 0.0)
        return recompute_layer_count / self.stage_layers[stage_index] * forward_s

    def transfer_s(self, tokens: float) -> float:
        """Message of a chunk's activations, or of their gradients, to a neighbouring stage (Eq. 2)."""
        profile = self.profile
        volume_bytes = profile.model.dtype_bytes * profile.model.hidden * tokens / profile.cluster.sp_size
        return profile.p2p.latency_s + volume_bytes / profile.p2p.bandwidth_bytes_per_s

    def full_activation_bytes(self, tokens: float, stage_index: int, *, keeps_kv: bool) -> float:
        """Activations of a chunk without recompute (Eq. 5; I_p[k] of Alg. 2).

        Args:
            tokens: Tokens of the chunk.
            stage_index: 0-based stage; the last one also holds the logits.
            keeps_kv: Whether a later slice attends to the chunk: gradients of its keys and values wait for it.
        """
        profile, model, memory = self.profile, self.profile.model, self.profile.memory
        per_token = memory.token_bytes / profile.device_count
        if keeps_kv:
            element_bytes = model.dtype_bytes if memory.working is None else memory.working.kv_gradient_bytes
            per_token += 2 * element_bytes * model.layers * model.kv_dim / profile.device_count
        per_token *= self.stage_shares[stage_index]
        if memory.working is not None:
            per_token += memory.working.chunk_token_bytes / profile.cluster.sp_size
        if stage_index == profile.cluster.pp_size - 1:
            per_token += memory.logits_bytes / profile.cluster.sp_size
        return per_token * tokens

    def working_bytes(self, tokens: float) -> float:
        """Most that any pass of a chunk needs while it runs, beside all that is held before it; 0 as in the paper.

        A plan that leaves this room for its largest chunk holds whatever its recompute counts: it is the memory of a
        layer that is recomputed whole, of its backward pass, and of three messages: the last one that was sent either
        way and the next one that comes.
        """
        profile = self.profile
        working = profile.memory.working
        if working is None:
            return 0.0
        layer_bytes = profile.memory.token_bytes / profile.model.layers
        backward_bytes = layer_bytes + working.backward_token_bytes
        most_bytes = max(
            backward_bytes, working.forward_token_bytes, working.recompute_token_bytes, working.context_token_bytes
        )
        message_bytes = profile.model.dtype_bytes * profile.model.hidden
        return (most_bytes + 3 * message_bytes) * tokens / profile.cluster.sp_size

    def saved_bytes_per_layer(self, tokens: float, *, keeps_kv: bool) -> float:
        """Bytes that recomputing one layer of a chunk saves (F[k] of Alg. 2, from Eqs. 9 and 10).

        The layer's activations go; its input stays, and its keys and values where a later slice attends to them.
        """
        profile, model = self.profile, self.profile.model
        layer_bytes = profile.memory.token_bytes / (model.layers * profile.cluster.sp_size)
        kept_width = model.hidden + (2 * model.kv_dim if keeps_kv else 0)
        return (layer_bytes - model.dtype_bytes * kept_width / profile.cluster.sp_size) * tokens

    def activation_bytes(
        self, tokens: float, stage_index: int, *, keeps_kv: bool, recompute_layer_count: int = 0
    ) -> float:
        """Activations of a chunk on one stage (Eq. 10, which is linear in the recomputed layers: Eq. 19)."""
        full_bytes = self.full_activation_bytes(tokens, stage_index, keeps_kv=keeps_kv)
        return full_bytes - recompute_layer_count * self.saved_bytes_per_layer(tokens, keeps_kv=keeps_kv)

    def ideal_s(self, quadratic: float, tokens: float) -> float:
        """All the work of a batch spread evenly over the devices of all replicas: no bubble, recompute or fixed cost.

        Args:
            quadratic: Sum of the squared lengths.
            tokens: Sum of the lengths.
        """
        profile, model, dp_size = self.profile, self.profile.model, self.profile.cluster.dp_size
        work_s = sum(c.alpha1 * quadratic + c.alpha2 * tokens for c in (profile.forward, profile.backward))
        work_s += profile.head.s_per_token * tokens
        if profile.cluster.sp_size == 1:
            return work_s / profile.device_count / dp_size
        volume_bytes = model.dtype_bytes * model.heads_dim * tokens / profile.cluster.sp_size
        all2all_s = volume_bytes / profile.all2all.bandwidth_bytes_per_s * 2 * model.layers / profile.cluster.pp_size
        return (work_s / profile.device_count + 2 * all2all_s) / dp_size
