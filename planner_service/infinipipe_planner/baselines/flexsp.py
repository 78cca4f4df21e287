"""Baseline ``flexsp``: sequence-parallel groups of different sizes under ZeRO-3 (FlexSP).

Models: the batch is sorted by length and cut into rounds that fit in memory; in every round the devices are divided
into groups of one, two, four, ... nodes, and a mixed-integer program deals the round's sequences out to groups so that
the slowest is done as early as possible. Number of rounds and number of recomputed layers (the same for all) are tried
by a greedy assignment; the program then improves the best of them.

Leaves out: groups smaller than a node (inside a node all-to-alls take the same share of the time whatever the size of
the group, down to a single device), padding, the optimizer, the time to solve. ZeRO-3 overlaps with computation as well
as it can.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infinipipe_contract.profile import Profile, derive_node_links
from infinipipe_contract.text import count_of
from infinipipe_planner.baselines.breakdown import Breakdown
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.flexsp_milp import assign_round
from infinipipe_planner.baselines.sequence_groups import (
    GroupCosts,
    MicroBatch,
    group_shortage,
    micro_batch,
    recompute_steps,
)

_ROUNDS_BEYOND_LEAST = 4
"""Numbers of rounds tried: the fewest that memory allows and this many more."""

Groups = tuple[tuple[int, tuple[int, ...]], ...]
"""Groups of one round: size and lengths of the sequences; none is empty."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rounds with their groups, for one number of recomputed layers."""

    total_s: float
    costs: GroupCosts
    rounds: tuple[Groups, ...]


def estimate_flexsp(lengths_tokens: Sequence[int], profile: Profile) -> Breakdown:
    """Estimate one training step.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model; its stages play no part.

    Raises:
        BaselineDoesNotFitError: If the longest sequence does not fit on all devices with every layer recomputed.
    """
    layers, largest = profile.model.layers, group_sizes(profile)[-1]
    reason = group_shortage(GroupCosts(profile, layers), max(lengths_tokens), largest)
    if reason is not None:
        raise BaselineDoesNotFitError(reason)
    best = min(_trials(lengths_tokens, profile), key=lambda trial: trial.total_s)
    costs = best.costs
    sizes = group_sizes(profile)
    rounds = []
    for groups in best.rounds:
        improved = assign_round([n for _, lengths in groups for n in lengths], sizes, costs)
        rounds.append(min((groups, improved), key=lambda one: _round_s(one, costs)) if improved else groups)
    used = sorted({size for groups in rounds for size, _ in groups})
    layer_count = round(costs.recompute_ratio * layers)
    return costs.break_down(
        [_batches(groups) for groups in rounds],
        f"sp {'/'.join(map(str, used))}, {count_of(len(rounds), 'round')}, {count_of(layer_count, 'layer')} recomputed",
    )


def group_sizes(profile: Profile) -> list[int]:
    """List the sizes of groups: a node, two, four, ... as far as there are devices."""
    sizes = [min(derive_node_links(profile).devices_per_node, profile.device_count)]
    while 2 * sizes[-1] <= profile.device_count:
        sizes.append(2 * sizes[-1])
    return sizes


def _trials(lengths_tokens: Sequence[int], profile: Profile) -> Iterator[_Trial]:
    """Try numbers of recomputed layers and of rounds with the greedy assignment; at least one trial succeeds.

    With every layer recomputed and a round for each sequence all fit, so rounds are added until something does.
    """
    longest_first = sorted(lengths_tokens, reverse=True)
    total_tokens, sizes = sum(lengths_tokens), group_sizes(profile)
    layouts = list(_layouts(sizes, profile.device_count))
    for layer_count in [*recompute_steps(profile.model.layers)[::4], profile.model.layers]:
        costs = GroupCosts(profile, layer_count)
        if costs.capacity_tokens(sizes[-1]) < longest_first[0]:
            continue
        least = -(-total_tokens // costs.capacity_tokens(profile.device_count))
        found = 0
        for round_count in range(least, len(lengths_tokens) + least):
            rounds = [_greedy_round(part, layouts, costs) for part in _cut(longest_first, round_count)]
            fitting = tuple(groups for groups in rounds if groups is not None)
            if len(fitting) == len(rounds):
                yield _Trial(sum(_round_s(groups, costs) for groups in fitting), costs, fitting)
                found += 1
            if found > 0 and round_count >= least + _ROUNDS_BEYOND_LEAST:
                break


def _cut(longest_first: Sequence[int], round_count: int) -> list[list[int]]:
    """Cut sorted sequences into rounds of nearly equal tokens; no round is empty."""
    target_tokens = sum(longest_first) / round_count
    rounds: list[list[int]] = []
    tokens = 0
    for length in longest_first:
        if not rounds or tokens + length / 2 > len(rounds) * target_tokens:
            rounds.append([])
        rounds[-1].append(length)
        tokens += length
    return rounds


def _layouts(sizes: Sequence[int], device_count: int) -> Iterator[tuple[int, ...]]:
    """List the ways to divide the devices into groups, as sizes, largest first."""
    if not sizes:
        yield ()
        return
    largest = sizes[-1]
    for count in range(device_count // largest + 1):
        for rest in _layouts(sizes[:-1], device_count - count * largest):
            # Idle devices help nobody: what is left over is less than the smallest group.
            if len(sizes) > 1 or device_count - count * largest < largest:
                yield (largest,) * count + rest


def _greedy_round(lengths: Sequence[int], layouts: Sequence[tuple[int, ...]], costs: GroupCosts) -> Groups | None:
    """Deal sequences, longest first, to the group that is done first with them; the best layout. None if none fits."""
    found = [groups for layout in layouts if (groups := _deal(lengths, layout, costs)) is not None]
    return min(found, key=lambda groups: _round_s(groups, costs), default=None)


def _deal(lengths: Sequence[int], layout: tuple[int, ...], costs: GroupCosts) -> Groups | None:
    rates = [costs.rates(size) for size in layout]
    busy_s = [rate.fixed_s for rate in rates]
    room_tokens = [costs.capacity_tokens(size) for size in layout]
    dealt: list[list[int]] = [[] for _ in layout]
    for length in lengths:
        grown_s = [
            (busy_s[g] + rates[g].token_s * length + rates[g].pair_s * length * length, g)
            for g, room in enumerate(room_tokens)
            if length <= room
        ]
        if not grown_s:
            return None
        done_s, g = min(grown_s)
        busy_s[g] = done_s
        room_tokens[g] -= length
        dealt[g].append(length)
    return tuple((size, tuple(part)) for size, part in zip(layout, dealt, strict=True) if part)


def _batches(groups: Groups) -> list[MicroBatch]:
    return [micro_batch(size, lengths) for size, lengths in groups]


def _round_s(groups: Groups, costs: GroupCosts) -> float:
    return max(map(costs.total_s, _batches(groups)))
