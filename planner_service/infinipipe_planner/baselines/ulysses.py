"""Baseline ``ulysses``: ZeRO-3 and sequence parallelism over all devices (DeepSpeed with Ulysses).

Models: sequences are packed into micro-batches up to the memory of a group; every micro-batch runs on a group of
``sp_size`` devices, replicas of the group run side by side. All-to-alls that cross nodes share the nodes' links. All
micro-batches recompute the same number of layers, the best one for the batch.

Leaves out: heads that do not divide among so many devices, overlap of all-to-alls with computation, padding, the
optimizer. ZeRO-3 overlaps with computation as well as it can.
"""

from collections.abc import Sequence

from infinipipe_contract.profile import Profile
from infinipipe_contract.text import count_of
from infinipipe_planner.baselines.breakdown import Breakdown
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.sequence_groups import GroupCosts, group_shortage, micro_batch, recompute_steps
from infinipipe_planner.chunking.fixed_size import pack_whole


def estimate_ulysses(lengths_tokens: Sequence[int], profile: Profile, sp_size: int | None = None) -> Breakdown:
    """Estimate one training step.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model; its stages play no part.
        sp_size: Devices that share a micro-batch, a divisor of all; None means all.

    Raises:
        BaselineDoesNotFitError: If the longest sequence does not fit with every layer recomputed.
    """
    group_size = profile.device_count if sp_size is None else sp_size
    replica_count, rest = divmod(profile.device_count, group_size)
    if rest:
        raise ValueError(
            f"sp_size is {group_size}, it must be a divisor of the cluster's {profile.device_count} devices"
        )
    longest, layers = max(lengths_tokens), profile.model.layers
    reason = group_shortage(GroupCosts(profile, layers), longest, group_size)
    if reason is not None:
        raise BaselineDoesNotFitError(reason)
    fitting = (
        costs
        for layer_count in recompute_steps(layers)
        if (costs := GroupCosts(profile, layer_count)).capacity_tokens(group_size) >= longest
    )
    estimates = (_estimate(lengths_tokens, costs, group_size, replica_count) for costs in fitting)
    return min(estimates, key=lambda estimate: estimate.total_s)


def _estimate(lengths_tokens: Sequence[int], costs: GroupCosts, group_size: int, replica_count: int) -> Breakdown:
    capacity_tokens, longest_tokens = costs.capacity_tokens(group_size), max(lengths_tokens)
    # As many micro-batches as memory asks for, evenly filled, the same number on every replica.
    round_count = -(-sum(lengths_tokens) // (capacity_tokens * replica_count))
    even_tokens = -(-sum(lengths_tokens) // (round_count * replica_count))
    chains = pack_whole(lengths_tokens, min(capacity_tokens, max(even_tokens, longest_tokens)))
    batches = sorted(
        (
            micro_batch(group_size, (piece.length_tokens for piece in chunk.slices))
            for chain in chains
            for chunk in chain
        ),
        key=costs.total_s,
        reverse=True,
    )
    rounds = [batches[start : start + replica_count] for start in range(0, len(batches), replica_count)]
    layer_count = round(costs.recompute_ratio * costs.profile.model.layers)
    replicas = "" if replica_count == 1 else f"{replica_count} x "
    chosen = f"{count_of(len(batches), 'micro-batch')}, {count_of(layer_count, 'layer')} recomputed"
    return costs.break_down(rounds, f"sp {replicas}{group_size}, {chosen}")
