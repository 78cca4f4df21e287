"""FlexSP's assignment of one round as a mixed-integer program in SCIP.

Deterministic, like ``scheduling.ilp``: one thread, fixed seeds, a limit on nodes instead of seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyscipopt import Model, quicksum

from infinipipe_planner.baselines.sequence_groups import GroupCosts

_GAP_RATIO = 0.02
_NODE_LIMIT = 50


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Sequences of nearly equal length, within an eighth of an octave; they count alike.

    Attributes:
        lengths: Tokens of each, longest first.
    """

    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        return self.lengths[0]

    @property
    def mean_tokens(self) -> float:
        return sum(self.lengths) / len(self.lengths)

    @property
    def mean_quadratic(self) -> float:
        return sum(length * length for length in self.lengths) / len(self.lengths)


def assign_round(
    lengths: Sequence[int], sizes: Sequence[int], costs: GroupCosts
) -> tuple[tuple[int, tuple[int, ...]], ...] | None:
    """Choose groups and deal the sequences out to them so that the slowest group is done as early as possible.

    Minimise T subject to, for every group g of size d that may be formed (x_g in {0, 1}) and every bucket b of
    sequences (n_bg of them in g): sum_g n_bg = all of b; sum_g d x_g <= devices; tokens of g <= capacity of d, and 0
    unless x_g; fixed seconds, work and all-to-all of g <= T.

    Args:
        lengths: Tokens of the round's sequences.
        sizes: Sizes that a group may have.
        costs: What they cost; what ZeRO-3 does not hide is left out here.

    Returns:
        Size and lengths of every group that is not empty; None where the solver finds nothing within its limits.
    """
    buckets = _bucket(lengths)
    device_count = costs.profile.device_count
    groups = [size for size in sizes for _ in range(device_count // size)]
    model = Model("flexsp")
    model.hideOutput()
    model.setParam("limits/gap", _GAP_RATIO)
    model.setParam("limits/nodes", _NODE_LIMIT)
    slowest_s = model.addVar("slowest_s", lb=0)
    chosen = [model.addVar(f"group_{g}", vtype="B") for g in range(len(groups))]
    counts = [
        [model.addVar(f"count_{b}_{g}", vtype="I", lb=0, ub=len(bucket.lengths)) for g in range(len(groups))]
        for b, bucket in enumerate(buckets)
    ]
    for bucket, of_bucket in zip(buckets, counts, strict=True):
        model.addCons(quicksum(of_bucket) == len(bucket.lengths))
    model.addCons(quicksum(size * x for size, x in zip(groups, chosen, strict=True)) <= device_count)
    for g, size in enumerate(groups):
        of_group = [row[g] for row in counts]
        capacity_ktokens = costs.capacity_tokens(size) / 1024
        tokens = quicksum(b.longest / 1024 * n for b, n in zip(buckets, of_group, strict=True))
        model.addCons(tokens <= capacity_ktokens * chosen[g])
        rates = costs.rates(size)
        busy_s = quicksum(
            (rates.token_s * b.mean_tokens + rates.pair_s * b.mean_quadratic) * n
            for b, n in zip(buckets, of_group, strict=True)
        )
        model.addCons(busy_s + rates.fixed_s * chosen[g] <= slowest_s)
        if g > 0 and groups[g - 1] == size:
            model.addCons(chosen[g] <= chosen[g - 1])  # equal groups are taken in order
    model.setObjective(slowest_s, "minimize")
    model.optimize()
    best = model.getBestSol() if model.getNSols() > 0 else None
    if best is None:
        return None
    dealt: list[list[int]] = [[] for _ in groups]
    for bucket, of_bucket in zip(buckets, counts, strict=True):
        _deal_bucket(bucket, [round(best[n]) for n in of_bucket], dealt)
    return tuple((size, tuple(part)) for size, part in zip(groups, dealt, strict=True) if part)


def _bucket(lengths: Sequence[int]) -> list[_Bucket]:
    """Put sequences into buckets of an eighth of an octave, longest first."""
    by_octave: dict[int, list[int]] = {}
    for length in sorted(lengths, reverse=True):
        by_octave.setdefault(math.floor(8 * math.log2(length)), []).append(length)
    return [_Bucket(tuple(of_octave)) for of_octave in by_octave.values()]


def _deal_bucket(bucket: _Bucket, counts: Sequence[int], dealt: list[list[int]]) -> None:
    """Deal a bucket's sequences in turn, so that every group gets long and short ones."""
    left = list(counts)
    g = -1
    for length in bucket.lengths:
        g = next(h % len(left) for h in range(g + 1, g + 1 + len(left)) if left[h % len(left)] > 0)
        dealt[g].append(length)
        left[g] -= 1
