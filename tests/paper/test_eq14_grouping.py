"""Eq. 14: grouping by dynamic programming."""

import dataclasses
import itertools
import random

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import Chunk
from infinipipe_planner.scheduling.grouping import (
    ScheduledPipeline,
    group_chains,
    recompute_cost_s,
    warmup_cooldown_s,
)
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile

EXACT = IlpLimits(gap_ratio=0.0, node_limit=100_000)

Chains = list[tuple[Chunk, ...]]


def schedule(chains: Chains, costs: CostModel) -> ScheduledPipeline | None:
    order = order_pipeline(chains, costs.profile.cluster.pp_size)
    recompute = solve_recompute(build_recompute_problem(order, costs), EXACT)
    return None if recompute is None else ScheduledPipeline(order, recompute)


def least_cost_s(chains: Chains, costs: CostModel) -> float:
    """Try every way to cut the ordered classes into groups of neighbours."""
    classes = sorted({len(chain) for chain in chains})
    delta_s = warmup_cooldown_s(chains, costs)
    totals = []
    for cuts in itertools.product([False, True], repeat=len(classes) - 1):
        groups, group = [], [classes[0]]
        for cut, size in zip(cuts, classes[1:], strict=True):
            if cut:
                groups.append(group)
                group = []
            group.append(size)
        groups.append(group)
        pipelines = [schedule([c for c in chains if len(c) in sizes], costs) for sizes in groups]
        fitting = [pipeline for pipeline in pipelines if pipeline is not None]
        if len(fitting) == len(groups):
            totals.append(sum(delta_s + recompute_cost_s(pipeline, costs) for pipeline in fitting))
    return min(totals)


def total_cost_s(pipelines: list[ScheduledPipeline], chains: Chains, costs: CostModel) -> float:
    return sum(warmup_cooldown_s(chains, costs) + recompute_cost_s(pipeline, costs) for pipeline in pipelines)


@pytest.mark.parametrize("device_memory_bytes", [9000, 9500])
@pytest.mark.parametrize("seed", range(12))
def test_grouping_costs_no_more_than_any_partition_into_neighbouring_classes(
    seed: int, device_memory_bytes: float
) -> None:
    """``dp[i+1] = min over k of dp[k] + delta + T_ckpt(P)``, P holding ``S[k+1 : i+1]``. Reference: III-C2, Eq. 14."""
    generator = random.Random(seed)
    chains: Chains = [
        split_chain(index, *(generator.randint(2, 9) for _ in range(generator.choice([1, 2, 3, 5]))))
        for index in range(6)
    ]
    profile = round_profile(sp_size=1, device_memory_bytes=device_memory_bytes)
    costs = CostModel(dataclasses.replace(profile, memory=dataclasses.replace(profile.memory, logits_bytes=0.0)))

    pipelines = group_chains(chains, costs, EXACT)

    assert total_cost_s(pipelines, chains, costs) == pytest.approx(least_cost_s(chains, costs))


def test_short_sequences_leave_the_long_one_where_its_window_would_make_them_recompute() -> None:
    """Grouped with a long sequence, short ones are forced to a tighter setup by the enlarged N_split.

    Reference: III-C2, Fig. 6(a). Many short chunks make the second pipeline worth its warm-up.
    """
    profile = round_profile(sp_size=1, device_memory_bytes=9000)
    chains = [split_chain(0, 2, 2, 2, 2, 2, 2), *(batched_chain((index, 12)) for index in range(1, 30))]

    pipelines = group_chains(chains, CostModel(profile), EXACT)

    assert [len(pipeline.order.chunks) for pipeline in pipelines] == [6, 29]


def test_everything_shares_one_pipeline_where_memory_is_plenty() -> None:
    """No recompute is saved, so another warm-up never pays. Reference: III-C2."""
    chains = [split_chain(0, 5, 4, 3), split_chain(1, 5, 2), batched_chain((2, 4))]

    pipelines = group_chains(chains, CostModel(round_profile()), EXACT)

    assert len(pipelines) == 1
