"""`--json` of every command that shows something: documents with the keys that docs/looking.md names."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer
from typer.testing import CliRunner

from infinipipe_contract.codec import plan_from_json, plan_to_json, profile_to_json
from infinipipe_contract.plan import ActionKind
from infinipipe_executor.errors import PlanFailedError
from infinipipe_executor.plan_client import ActionMeasurement, PlanClient, RankReport
from infinipipe_planner.cli import build_app
from infinipipe_planner.errors import SolverLostError
from support_analytic import KNOWN_MODELS
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, background_service, plan_of_one_chunk

LOOKING = Path(__file__).parents[3] / "docs" / "looking.md"
PLAN = plan_of_one_chunk((5, 7), job="train", generation=1, step=0)


@pytest.fixture
def service() -> Iterator[BackgroundService]:
    """A service with a job of two steps: measured, failed."""
    with background_service() as running, PlanClient(running.address, call_timeout_s=10) as client:
        running.solver.errors[1] = SolverLostError("solver process 0 died twice")
        client.create_job("train", PROFILE, context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))
        client.fetch_plan(0, timeout_s=10)
        passes = (ActionMeasurement(0, ActionKind.FORWARD, 0, 0.0, 0.5),)
        client.report_step(0, RankReport(0, 0, 2.0, 2.0, 0.25, 0, 5.5, passes, first_start_s=0.125))
        client.report_step(0, RankReport(1, 1, 2.0, 1.0, 0.5, 2**20, 5.5))
        client.submit_batch(1, (5, 7))
        with pytest.raises(PlanFailedError):
            client.fetch_plan(1, timeout_s=10)
        yield running


def ask(*arguments: object) -> Any:
    result = CliRunner().invoke(build_app(), [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_jobs_are_a_list_of_objects(service: BackgroundService) -> None:
    (job,) = ask("jobs", "--planner", service.address)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", job.pop("created"))
    assert job == {
        "job": "train",
        "generation": 1,
        "profile": "two-stages",
        "dp_size": 1,
        "pp_size": 2,
        "sp_size": 1,
        "context_tokens": CONTEXT_TOKENS,
        "policy": "search",
        "planned_step_count": 1,
        "submitted_step_count": 2,
    }


def test_an_empty_planner_is_an_empty_list() -> None:
    with background_service() as service:
        assert ask("jobs", "--planner", service.address) == []


def test_plans_hold_null_where_something_is_not_known(service: BackgroundService) -> None:
    planned, failed = ask("plans", "train", "--planner", service.address)

    assert planned["state"] == "ready"
    assert planned["predicted_s"] == PLAN.estimate.makespan_s
    assert planned["measured_s"] == 2.0
    assert planned["outcome"] == "optimal"
    assert planned["failure"] is None
    assert failed["failure"] == "solver process 0 died twice"
    assert failed["predicted_s"] is failed["measured_s"] is failed["chunk_count"] is None
    assert planned.keys() == failed.keys()


def test_show_holds_the_plan_memory_over_time_and_the_ranks(service: BackgroundService) -> None:
    shown = ask("show", "train", 0, "--planner", service.address)

    assert plan_from_json(json.dumps(shown["plan"])) == PLAN
    last = shown["memory"][1]
    assert last["peak_bytes"] == max(point["bytes"] for point in last["points"]) == PLAN.estimate.stages[1].peak_bytes
    assert [point["time_s"] for point in last["points"]] == sorted(point["time_s"] for point in last["points"])
    first, second = shown["ranks"]
    assert (first["first_start_s"], first["peak_bytes"], first["loss"]) == (0.125, None, 5.5)
    assert first["actions"] == [
        {"kind": "forward", "pipeline_index": 0, "chunk_index": 0, "start_s": 0.0, "end_s": 0.5}
    ]
    assert (second["first_start_s"], second["peak_bytes"]) == (None, 2.0**20)


def test_what_show_writes_is_a_plan_file_for_diff_and_trace(service: BackgroundService, tmp_path: Path) -> None:
    path, profile = tmp_path / "plan.json", tmp_path / "profile.json"
    path.write_text(json.dumps(ask("show", "train", 0, "--planner", service.address)))
    profile.write_text(profile_to_json(PROFILE))
    (tmp_path / "bare.json").write_text(plan_to_json(PLAN))

    compared = ask("diff", path, tmp_path / "bare.json")
    traced = CliRunner().invoke(build_app(), ["trace", "--plan", str(path), "--profile", str(profile)])

    assert compared["moved_sequence_count"] == 0
    assert json.loads(traced.stdout)["otherData"]["digest"] == PLAN.digest


def test_watch_writes_an_object_a_line(service: BackgroundService) -> None:
    command = [sys.executable, "-c", "from infinipipe_planner.cli import main; main()", "watch", "train", "--json"]
    watch = subprocess.Popen([*command, "--planner", service.address], stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        measured, failed, job = (json.loads(line) for line in itertools.islice(watch.stdout, 3))
    finally:
        watch.kill()
        watch.communicate()

    assert (measured["kind"], measured["state"], measured["measured_bubble_ratio"]) == ("step", "measured", 0.25)
    assert (failed["state"], failed["failure"]) == ("failed", "solver process 0 died twice")
    assert job == {
        "kind": "job",
        "job": "train",
        "generation": 1,
        "planned_step_count": 1,
        "submitted_step_count": 2,
        "trained_to_step": 0,
        "lead_step_count": 0,
    }


def test_plan_and_compare_write_json_as_well(tmp_path: Path) -> None:
    profile, lengths = tmp_path / "profile.json", tmp_path / "lengths.json"
    profile.write_text(profile_to_json(PROFILE))
    lengths.write_text("[50, 70]")

    made = ask("plan", "--profile", profile, "--lengths", lengths, "--policy", "paper")
    compared = ask("compare", "--profile", profile, "--lengths", lengths, "--policies", "paper")

    assert made["policy"] == "paper"
    assert [one["policy"] for one in compared] == ["paper"]


def test_health_tells_that_a_planner_serves(service: BackgroundService) -> None:
    assert ask("health", "--planner", service.address) == {
        "planner": service.address,
        "is_serving": True,
        "status": "SERVING",
    }


def test_health_that_does_not_serve_is_a_document_and_a_failure() -> None:
    server, servicer = grpc.server(ThreadPoolExecutor(1)), HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        result = CliRunner().invoke(build_app(), ["health", "--planner", address, "--json"])
    finally:
        server.stop(None).wait()

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"planner": address, "is_serving": False, "status": "NOT_SERVING"}
    assert result.stderr == f"error: the planner at {address} answers NOT_SERVING\n"


def test_every_key_of_a_dry_run_and_an_explanation_is_documented(tmp_path: Path) -> None:
    text = LOOKING.read_text()
    model, profile, lengths = (tmp_path / name for name in ("config.json", "profile.json", "lengths.json"))
    model.write_text(json.dumps(KNOWN_MODELS["Llama-3.2-1B"].config))
    profile.write_text(profile_to_json(PROFILE))
    lengths.write_text("[90000, 70]")

    dry = ask(
        "plan",
        "--dry-run",
        "--model",
        model,
        "--device",
        "a100-40",
        "--nodes",
        1,
        "--devices-per-node",
        2,
        "--lengths",
        lengths,
    )
    lengths.write_text("[50, 70]")
    explained = ask("plan", "--explain", "--profile", profile, "--lengths", lengths, "--policy", "paper")

    assert {layout["fits"] for layout in dry["layouts"]} == {True, False}
    assert {key for document in (dry, explained) for key in keys_of(document) if f"`{key}`" not in text} == set()


def test_every_key_is_documented(service: BackgroundService) -> None:
    text = LOOKING.read_text()
    shown = ask("show", "train", 0, "--planner", service.address)
    del shown["plan"]  # the contract's own form, see plan.proto
    documents = [
        ask("jobs", "--planner", service.address),
        ask("plans", "train", "--planner", service.address),
        shown,
        ask("health", "--planner", service.address),
    ]

    assert {key for document in documents for key in keys_of(document) if f"`{key}`" not in text} == set()


def keys_of(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from keys_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from keys_of(value)
