"""Eq. 20: the integer linear program."""

import itertools
import random

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem, build_recompute_problem
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile


def least_layer_sum(problem: RecomputeProblem) -> int | None:
    """Try every vector of recomputed layers."""
    vectors = itertools.product(range(problem.layer_limit + 1), repeat=problem.variable_count)
    return min((sum(v) for v in vectors if all(c.holds(v) for c in problem.constraints)), default=None)


@pytest.mark.parametrize("seed", range(40))
def test_the_solver_finds_the_least_recompute_of_all_vectors(seed: int) -> None:
    """Minimise ``sum(C)`` subject to the windows' memory and ``c <= L / d_p``. Reference: III-C3, Eq. 20."""
    generator = random.Random(seed)
    pp_size = generator.choice([1, 2, 3])
    chains = [
        split_chain(0, *(generator.randint(3, 12) for _ in range(generator.choice([1, 2, 3])))),
        *(batched_chain((index, generator.randint(3, 12))) for index in range(1, 4)),
    ]
    profile = round_profile(
        pp_size=pp_size, layers=2 * pp_size, device_memory_bytes=generator.choice([2200, 2800, 3400, 4200])
    )
    problem = build_recompute_problem(order_pipeline(chains, pp_size), CostModel(profile))

    solution = solve_recompute(problem, IlpLimits(gap_ratio=0.0, node_limit=100_000))

    assert (None if solution is None else sum(solution.layer_counts)) == least_layer_sum(problem)
