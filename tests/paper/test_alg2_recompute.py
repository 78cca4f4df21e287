"""Alg. 2: stage-aware chunk-level recompute."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.scheduling.one_f_one_b import chunk_windows, order_pipeline
from infinipipe_planner.scheduling.recompute import solve_recompute
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile

CHAINS = [split_chain(0, 6, 5, 4), *(batched_chain((index, 6)) for index in range(1, 5))]


def test_lines_7_to_13_write_one_constraint_a_window_of_every_stage() -> None:
    """For every stage and window: ``sum(I_p[k] - F[k] C[d_p - p + f2b[k]]) <= G - M_ms(p)``. Reference: Alg. 2.

    So little memory that every window binds.
    """
    order = order_pipeline(CHAINS, 2)
    costs = CostModel(round_profile(device_memory_bytes=1500))

    problem = build_recompute_problem(order, costs)

    windows = [(stage, window) for stage, passes in enumerate(order.stages) for window in chunk_windows(passes)]
    assert len(problem.constraints) == len(windows)
    for constraint, (stage, window) in zip(problem.constraints, windows, strict=True):
        kept = {0, 1}
        tokens = {k: order.chunks[k].token_count for k in window}
        assert constraint.free_bytes == 500
        assert constraint.full_bytes == pytest.approx(
            sum(costs.full_activation_bytes(tokens[k], stage, keeps_kv=k in kept) for k in window)
        )
        assert constraint.saved_bytes == pytest.approx(
            {
                order.backward_rank[k] + 1 - stage: costs.saved_bytes_per_layer(tokens[k], keeps_kv=k in kept)
                for k in window
            }
        )


def test_stages_recompute_differently_as_their_memory_differs() -> None:
    """Different stages have varying requirements: stage 0 holds the widest window. Reference: III-C1, III-C3."""
    order = order_pipeline(CHAINS, 2)
    problem = build_recompute_problem(order, CostModel(round_profile(device_memory_bytes=3500)))

    solution = solve_recompute(problem, IlpLimits(0.0, 1000))

    assert solution is not None
    assert len(solution.layer_counts) == len(order.chunks) + 1
    assert len(set(solution.layer_counts)) > 1


def test_no_window_above_the_limit_means_no_recompute() -> None:
    """Naively recomputing everything introduces unnecessary overhead. Reference: III-C1."""
    problem = build_recompute_problem(order_pipeline(CHAINS, 2), CostModel(round_profile()))

    solution = solve_recompute(problem, IlpLimits(0.0, 1000))

    assert solution is not None
    assert set(solution.layer_counts) == {0}


def test_a_window_that_recompute_could_make_heavier_stays_a_constraint() -> None:
    """Line 3 is negative where a layer's input and kept keys and values outweigh what it saves. Reference: Alg. 2.

    With 150 bytes a token, recompute of a kept chunk costs bytes: the window fits, and must go on fitting.
    """
    profile = round_profile()
    profile = dataclasses.replace(profile, memory=dataclasses.replace(profile.memory, token_bytes=150.0))
    order = order_pipeline(CHAINS, 2)

    problem = build_recompute_problem(order, CostModel(profile))

    assert problem.constraints
    assert all(min(constraint.saved_bytes.values()) < 0 for constraint in problem.constraints)
    assert all(constraint.full_bytes <= constraint.free_bytes for constraint in problem.constraints)
