"""How a step of several replicas is shown: a lane is a stage of a replica."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.simulate import simulate
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_planner.cli import build_app
from infinipipe_planner.explain import explain_batch, memory_moments
from infinipipe_planner.measured import on_one_clock
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.plan_diff import diff_plans
from infinipipe_planner.report_page.page import render_page
from infinipipe_planner.report_page.view import JobView, StepView
from infinipipe_planner.solve import solve_plan
from infinipipe_planner.trace import build_trace
from support_contract import replica_plan, with_replicas
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile
from support_service import CONTEXT_TOKENS, PROFILE, background_service
from support_views import rank_of

PAPER = PlanOptions(policy="paper")


def step_of_replicas() -> StepView:
    """A measured step of three replicas, the last one empty, every stage one rank that runs half as fast."""
    profile, _, plan = replica_plan()
    planned = simulate(plan.pipelines, profile)
    ranks = [
        dataclasses.replace(rank_of(planned, lane, lane, slowdown=2.0), replica_index=lane // 2, stage_index=lane % 2)
        for lane in range(4)
    ]
    return StepView(plan, planned, on_one_clock(ranks, planned))


def test_ranks_of_every_replica_start_by_the_clock_of_their_own_first_stage() -> None:
    step = step_of_replicas()

    for first, second in ((step.ranks[0], step.ranks[1]), (step.ranks[2], step.ranks[3])):
        ended_s = {span.chunk_id: span.end_s for span in first.spans if span.kind is ActionKind.FORWARD}
        waits_s = [span.start_s - ended_s[span.chunk_id] for span in second.spans if span.kind is ActionKind.FORWARD]
        assert first.replica_index == second.replica_index
        assert first.spans[0].start_s == 0
        assert min(waits_s) == pytest.approx(0, abs=1e-9)


def test_a_trace_has_a_thread_for_every_stage_of_every_replica_and_arrows_inside_one_only() -> None:
    step = step_of_replicas()

    events = build_trace(step.plan, step.planned, step.ranks)["traceEvents"]

    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names[:6] == [f"replica {replica}, stage {stage}" for replica in range(3) for stage in range(2)]
    assert names[6:] == [f"rank {lane} (replica {lane // 2}, stage {lane % 2})" for lane in range(4)]
    ends = {event["id"]: event["tid"] for event in events if event["ph"] == "f"}
    arrows = {(event["tid"], ends[event["id"]]) for event in events if event["ph"] == "s"}
    assert arrows == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_a_report_names_the_replica_of_every_lane() -> None:
    profile, _, _ = replica_plan()

    page = render_page(JobView("train", 1, profile, 4096, (step_of_replicas(),), ()))

    assert "3 replicas of 2 stages of 2 ranks" in page
    assert page.count("replica 2, stage 1") >= 2
    assert "rank 3 of replica 1" in page


def test_an_explanation_looks_at_every_replica_that_has_a_pipeline() -> None:
    profile, _, plan = replica_plan()

    moments = memory_moments(plan.pipelines, profile)

    assert [(one.replica_index, one.stage_index) for one in moments] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert moments[2].chunk_id.pipeline_index == 1


def test_one_more_slice_is_told_as_the_time_of_all_replicas() -> None:
    """The longest sequence is not on the slowest replica: slicing it more finely cannot make the step faster."""
    found = explain_batch([40_000, *[39_000] * 4, *[100] * 20], with_replicas(llama_profile(), 2), PAPER)

    (change,) = [one for one in found.what_ifs if "slice" in one.change]
    assert (change.makespan_s, change.result) == (found.makespan_s, "the same time")


def test_plans_of_one_and_of_two_replicas_differ_in_replicas_and_places() -> None:
    lengths, profile = github_lengths(12, 8192), llama_profile()
    one, two = (solve_plan(lengths, with_replicas(profile, dp_size), PAPER) for dp_size in (1, 2))

    found = diff_plans(one, two)

    figures = {figure.name: (figure.first, figure.second) for figure in found.figures}
    assert figures["replicas"] == (None, 2)
    assert figures["replica_1_stage_3_peak_bytes"][0] is None
    assert (found.moved_sequence_count or 0) > 0


def test_systems_without_a_pipeline_refuse_replicas_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(profile_to_json(with_replicas(llama_profile(), 2)))
    (tmp_path / "lengths.json").write_text(json.dumps(github_lengths(24, 8192)))
    files = ("--profile", str(tmp_path / "profile.json"), "--lengths", str(tmp_path / "lengths.json"))

    result = CliRunner().invoke(build_app(), ["compare", *files, "--policies", "paper,ulysses"])

    assert result.exit_code == 0, result.output
    assert "64 devices" in result.stdout
    assert "ulysses does not fit: its cost model is of one replica, the profile has cluster.dp_size 2" in result.stdout


def test_jobs_and_show_name_replicas_and_who_measured_what() -> None:
    with background_service() as service, PlanClient(service.address, call_timeout_s=10) as client:
        client.create_job("train", with_replicas(PROFILE, 2), context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))
        client.fetch_plan(0, timeout_s=10)
        client.report_step(0, RankReport(2, 0, 0.0, 0.0, 0.25, 0, 5.4321, (), replica_index=1))

        jobs, shown = (
            CliRunner().invoke(build_app(), [*command, "--planner", service.address])
            for command in (["jobs"], ["show", "train", "0"])
        )

    *_, row = jobs.stdout.splitlines()
    assert "dp x pp" in jobs.stdout
    assert row.split()[2:8] == ["two-stages", "2", "x", "2", "x", "1"]
    lines = shown.stdout.splitlines()
    assert "replica 1: no pipeline" in lines
    header = next(index for index, line in enumerate(lines) if line.split()[:3] == ["rank", "replica", "stage"])
    assert lines[header + 1].split() == ["2", "1", "0", "0.000", "0.000", "0.250", "-", "976.6", "-", "5.4321"]
