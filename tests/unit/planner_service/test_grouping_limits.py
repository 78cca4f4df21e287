"""Grouping where memory is short."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.scheduling import recompute
from infinipipe_planner.scheduling.grouping import group_chains
from infinipipe_planner.scheduling.ilp import IlpResult
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, RecomputeProblem
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile

LIMITS = IlpLimits(0.0, 1000)


def test_a_batch_that_cannot_fit_names_stage_need_and_limit() -> None:
    """Stage 0 holds both chunks of the sequence: 96 and 120 bytes a token once all four layers are recomputed."""
    profile = round_profile(device_memory_bytes=1400)
    costs = CostModel(profile)

    with pytest.raises(
        InfeasibleBatchError, match=r"stage 1 needs 1,\d{3} bytes .* 1,400 are usable; .*sp_size"
    ) as caught:
        group_chains([split_chain(0, 3, 3)], costs, LIMITS)

    least = [costs.activation_bytes(3, 1, keeps_kv=keeps_kv, recompute_layer_count=4) for keeps_kv in (True, False)]
    assert caught.value.stage_index == 1
    assert caught.value.needed_bytes == pytest.approx(1000 + sum(least))
    assert caught.value.usable_bytes == 1400


def test_model_states_that_do_not_fit_alone_are_named() -> None:
    with pytest.raises(InfeasibleBatchError, match="1,000 of them are model states"):
        group_chains([batched_chain((0, 3))], CostModel(round_profile(device_memory_bytes=900)), LIMITS)


def test_no_solver_runs_for_a_batch_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problem: RecomputeProblem, limits: IlpLimits) -> IlpResult:
        raise AssertionError("the solver was called")

    monkeypatch.setattr(recompute, "solve_ilp", refuse)
    chains = [split_chain(0, 9, 9, 9), *(batched_chain((index, 4)) for index in range(1, 9))]

    with pytest.raises(InfeasibleBatchError):
        group_chains(chains, CostModel(round_profile(device_memory_bytes=1900)), LIMITS)


def test_sequences_that_do_not_fit_together_get_pipelines_of_their_own() -> None:
    profile = round_profile(device_memory_bytes=2200)
    chains = [split_chain(0, 4, 4, 4), *(batched_chain((index, 9)) for index in range(1, 6))]

    pipelines = group_chains(chains, CostModel(profile), LIMITS)

    assert [len(pipeline.order.chunks) for pipeline in pipelines] == [3, 5]
