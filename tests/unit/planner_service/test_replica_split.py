"""A batch on several replicas of the pipeline: the split and the plan."""

import dataclasses
from collections.abc import Sequence

import pytest

from infinipipe_contract.plan import ActionKind, CandidateReport, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from infinipipe_planner.cost_model.slice_work import SliceWork
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.candidate import CandidateRequest, CandidateResult, Sweep, run_sweeps
from infinipipe_planner.policies.paper import PaperSpec
from infinipipe_planner.replicas import place_pipelines, split_batch
from infinipipe_planner.solve import run_in_process, solve_plan
from support_contract import with_replicas
from support_planner.batches import common_crawl_lengths, github_lengths
from support_planner.profiles import llama_profile, round_profile, small_head_profile

PAPER = PlanOptions(policy="paper")


def loads_s(split: Sequence[Sequence[int]], lengths: Sequence[int], profile: Profile) -> list[float]:
    work = SliceWork(profile, tuple(ActionKind))
    return [sum(work.prefix_work_s(lengths[index]) for index in indices) for indices in split]


def makespans_s(plan: ExecutionPlan, profile: Profile) -> list[float]:
    """Seconds until each replica is done."""
    stages = simulate(plan.pipelines, profile).stages
    return [
        max((s.spans[-1].end_s for s in stages if s.replica_index == index and s.spans), default=0.0)
        for index in range(profile.cluster.dp_size)
    ]


def without_attention(profile: Profile) -> Profile:
    """Let work be as long as a sequence is, so that sums are easy."""
    forward, backward = (dataclasses.replace(cost, alpha1=0.0) for cost in (profile.forward, profile.backward))
    return dataclasses.replace(profile, forward=forward, backward=backward)


@pytest.mark.parametrize("draw", [github_lengths, common_crawl_lengths])
@pytest.mark.parametrize("dp_size", [2, 4, 8])
def test_every_sequence_has_one_replica_and_all_replicas_have_equal_work(draw: type, dp_size: int) -> None:
    lengths, profile = draw(512, 32_768), with_replicas(llama_profile(), dp_size)

    split = split_batch(lengths, profile)

    loads = loads_s(split, lengths, profile)
    assert sorted(index for indices in split for index in indices) == list(range(512))
    assert max(loads) <= 1.001 * sum(loads) / dp_size
    assert split == split_batch(lengths, profile)


def test_attention_counts_when_work_is_shared() -> None:
    """One long sequence weighs as much as many short ones with more tokens."""
    lengths, profile = [65_536, *[4096] * 64], with_replicas(llama_profile(), 2)

    with_long, others = split_batch(lengths, profile)

    assert sum(lengths[index] for index in with_long) < 0.7 * sum(lengths[index] for index in others)


def test_sequences_are_exchanged_where_longest_first_leaves_a_replica_with_more() -> None:
    """Longest first puts 3 2 2 beside 3 2; 3 3 beside 2 2 2 is even."""
    split = split_batch([3, 3, 2, 2, 2], with_replicas(without_attention(round_profile()), 2))

    assert sorted(split) == [[0, 1], [2, 3, 4]]


def test_a_sequence_longer_than_a_fair_share_has_a_replica_of_its_own() -> None:
    lengths = [4096, 65_536, *[1024] * 30]

    split = split_batch(lengths, with_replicas(llama_profile(), 3))

    assert [1] in split


def test_replicas_beyond_the_sequences_stay_empty_and_the_plan_is_valid() -> None:
    profile = with_replicas(llama_profile(), 3)

    plan = solve_plan([5000], profile, PAPER)

    validate(plan, [5000], profile)
    assert {pipeline.replica_index for pipeline in plan.pipelines} == {0}
    assert (plan.replica_count, len(plan.estimate.stages)) == (3, 12)


@pytest.mark.parametrize("dp_size", [2, 4])
def test_no_replica_takes_five_percent_longer_than_the_mean(dp_size: int) -> None:
    lengths, profile = github_lengths(256, 16_384), with_replicas(llama_profile(), dp_size)

    plan = solve_plan(lengths, profile, PlanOptions(policy="search"))

    validate(plan, lengths, profile)
    made_s = makespans_s(plan, profile)
    assert plan.estimate.makespan_s == max(made_s) < 1.05 * sum(made_s) / dp_size


@pytest.mark.parametrize("policy", ["search", "paper", "seq1f1b", "no-recompute"])
def test_every_replica_runs_what_its_share_alone_would_run(policy: str) -> None:
    lengths, alone = github_lengths(48, 32_768), llama_profile(device_memory_bytes=40e9)
    profile, options = with_replicas(alone, 2), PlanOptions(policy=policy)

    plan = solve_plan(lengths, profile, options)

    for replica_index, indices in enumerate(split_batch(lengths, profile)):
        share = solve_plan([lengths[index] for index in indices], alone, options)
        own = tuple(one for one in plan.pipelines if one.replica_index == replica_index)
        assert own == place_pipelines(share.pipelines, indices, replica_index)
        tried = [c.makespan_s for c in plan.report.candidates if c.replica_index == replica_index]
        assert tried == [c.makespan_s for c in share.report.candidates]


def test_a_sequence_that_fits_no_replica_is_infeasible_as_on_one() -> None:
    profile = small_head_profile(device_memory_bytes=5.6e9)

    with pytest.raises(InfeasibleBatchError) as on_one:
        solve_plan([131_072], profile, PAPER)
    with pytest.raises(InfeasibleBatchError) as on_two:
        solve_plan([131_072, 64], with_replicas(profile, 2), PAPER)

    assert str(on_two.value) == str(on_one.value)


def test_the_rounds_of_all_sweeps_are_built_together_whatever_their_number() -> None:
    profile, asked = llama_profile(), []

    def sweep(*rounds: int) -> Sweep:
        results: list[CandidateResult] = []
        for count in rounds:
            results += yield [CandidateRequest((5,), profile, PAPER.limits, PaperSpec(1))] * count
        return results

    def run(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        asked.append(len(requests))
        return [
            CandidateResult(request.spec, CandidateReport(str(index), 1, 1.0, "", 0.0))
            for index, request in enumerate(requests)
        ]

    first, second, third = run_sweeps([sweep(2, 1), sweep(3), sweep(1, 1, 1)], run)

    assert asked == [6, 2, 1]
    assert [result.report.name for result in first] == ["0", "1", "0"]
    assert [result.report.name for result in second] == ["2", "3", "4"]
    assert [result.report.name for result in third] == ["5", "1", "0"]


def test_a_replica_that_is_done_before_the_others_asks_for_no_empty_round() -> None:
    rounds: list[int] = []

    def run(requests: Sequence[CandidateRequest]) -> list[CandidateResult]:
        rounds.append(len(requests))
        return run_in_process(requests)

    solve_plan([5000, 400, 300], with_replicas(llama_profile(), 2), PlanOptions(policy="search"), run_candidates=run)

    assert min(rounds) > 0
