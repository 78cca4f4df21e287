"""Micro-batches on groups of sequence-parallel devices under ZeRO-3: what DeepSpeed and FlexSP have in common.

Every group holds the whole model, sharded over all devices of the cluster, and runs a micro-batch through all layers:
computation divided among the group's devices, all-to-alls within the group. Parameters are gathered once in the forward
pass and once in the backward pass, gradients are reduced once; all that runs beside computation, the longer of the two
counts, as in Eq. 4 for a stage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.profile import ComputeCost, Profile
from infinipipe_planner.baselines.breakdown import Breakdown
from infinipipe_planner.baselines.links import all2all_s, gather_s


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that one group runs at once.

    Attributes:
        group_size: Devices of the group.
        tokens: Tokens of all sequences.
        quadratic: Sum of their squared lengths.
    """

    group_size: int
    tokens: int
    quadratic: int


def micro_batch(group_size: int, lengths_tokens: Iterable[int]) -> MicroBatch:
    """Sum up the sequences of one group."""
    lengths = tuple(lengths_tokens)
    return MicroBatch(group_size, sum(lengths), sum(length * length for length in lengths))


class _Parts(NamedTuple):
    """Seconds of a micro-batch on its group, forward and backward; see ``Breakdown``."""

    work_s: float
    fixed_s: float
    recompute_s: float
    exchange_s: float
    zero_s: float


class GroupRates(NamedTuple):
    """Seconds of a micro-batch on a group, forward and backward: fixed, per token and per squared token."""

    fixed_s: float
    token_s: float
    pair_s: float

    def busy_s(self, tokens: float, quadratic: float) -> float:
        """Seconds of a micro-batch."""
        return self.fixed_s + self.token_s * tokens + self.pair_s * quadratic


class GroupCosts:
    """Costs of micro-batches under one profile with a number of recomputed layers, the same for all."""

    def __init__(self, profile: Profile, recompute_layer_count: int) -> None:
        self.profile = profile
        self.recompute_ratio = recompute_layer_count / profile.model.layers
        self.gather_s = gather_s(profile)
        # All states of the model divided among all devices.
        state_bytes = profile.memory.model_state_bytes
        self.state_bytes = sum(state_bytes) / len(state_bytes)
        kept_bytes = profile.model.dtype_bytes * profile.model.hidden * recompute_layer_count
        held_bytes = (1 - self.recompute_ratio) * profile.memory.token_bytes + profile.memory.logits_bytes
        # A token that costs nothing counts as one byte.
        self.token_bytes = max(held_bytes + kept_bytes, 1.0)

    def capacity_tokens(self, group_size: int) -> int:
        """Most tokens of a micro-batch on a group; 0 where the model states alone are too large."""
        free_bytes = max(self.profile.usable_memory_bytes - self.state_bytes, 0.0)
        return int(free_bytes * group_size / self.token_bytes)

    def peak_bytes(self, batch: MicroBatch) -> float:
        """Bytes of one device of the group."""
        return self.state_bytes + self.token_bytes * batch.tokens / batch.group_size

    def total_s(self, batch: MicroBatch) -> float:
        """Forward and backward of a micro-batch."""
        return sum(self._parts_s(batch))

    def rates(self, group_size: int) -> "GroupRates":
        """Write the time of a micro-batch as a linear function, as if ZeRO-3 were hidden."""
        forward, backward, again = self.profile.forward, self.profile.backward, 1 + self.recompute_ratio
        latency_s = all2all_s(self.profile, 0, group_size)
        per_token_s = all2all_s(self.profile, 1, group_size) - latency_s
        return GroupRates(
            fixed_s=again * (forward.beta1 + latency_s) + backward.beta1 + latency_s,
            token_s=(again * forward.alpha2 + backward.alpha2 + self.profile.head.s_per_token) / group_size
            + (again + 1) * per_token_s,
            pair_s=(again * forward.alpha1 + backward.alpha1) / group_size,
        )

    def _parts_s(self, batch: MicroBatch) -> _Parts:
        profile = self.profile
        exchange_s = all2all_s(profile, batch.tokens, batch.group_size)
        forward_s, backward_s = self._work_s(profile.forward, batch), self._work_s(profile.backward, batch)
        head_s = profile.head.s_per_token * batch.tokens / batch.group_size
        # The head is neither recomputed nor taken to hide any of the parameters' gathering.
        forward_zero_s = max(0.0, self.gather_s - forward_s - profile.forward.beta1)
        backward_zero_s = max(0.0, 2 * self.gather_s - backward_s - profile.backward.beta1)
        whole_forward_s = forward_s + profile.forward.beta1 + forward_zero_s + exchange_s
        return _Parts(
            forward_s + backward_s + head_s,
            profile.forward.beta1 + profile.backward.beta1,
            self.recompute_ratio * whole_forward_s,
            2 * exchange_s,
            forward_zero_s + backward_zero_s,
        )

    def break_down(self, rounds: Sequence[Sequence[MicroBatch]], configuration: str) -> Breakdown:
        """Sum up rounds, one after the other; the groups of a round run at the same time and wait for the slowest.

        They have to: ZeRO-3 gathers parameters from all devices in every layer.
        """
        device_count = self.profile.device_count
        mean = _Parts(0.0, 0.0, 0.0, 0.0, 0.0)
        total_s = 0.0
        for batches in rounds:
            total_s += max(map(self.total_s, batches))
            for batch in batches:
                share = batch.group_size / device_count
                mean = _Parts(*(s + share * part for s, part in zip(mean, self._parts_s(batch), strict=True)))
        return Breakdown(
            work_s=mean.work_s,
            fixed_s=mean.fixed_s,
            recompute_s=mean.recompute_s,
            exchange_s=mean.exchange_s,
            zero_s=mean.zero_s,
            idle_s=max(0.0, total_s - sum(mean)),
            peak_bytes=max(self.peak_bytes(batch) for batches in rounds for batch in batches),
            configuration=configuration,
            hidden_zero_s=3 * self.gather_s * len(rounds) - mean.zero_s,
        )

    def _work_s(self, cost: ComputeCost, batch: MicroBatch) -> float:
        return (cost.alpha1 * batch.quadratic + cost.alpha2 * batch.tokens) / batch.group_size


def recompute_steps(layers: int) -> list[int]:
    """List numbers of recomputed layers worth a try: none, all, and about 20 between."""
    return sorted({*range(0, layers + 1, max(1, layers // 20)), layers})


def group_shortage(costs: GroupCosts, longest_tokens: int, group_size: int) -> str | None:
    """Say why the longest sequence does not fit on a group; None when it does."""
    if longest_tokens <= costs.capacity_tokens(group_size):
        return None
    needed_bytes = costs.peak_bytes(micro_batch(group_size, [longest_tokens]))
    return (
        f"the longest sequence, {longest_tokens} tokens, needs {needed_bytes:,.0f} bytes on each of {group_size} "
        f"devices with every layer recomputed, {costs.profile.usable_memory_bytes:,.0f} are usable"
    )
