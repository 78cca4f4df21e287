"""What Prometheus sees of a service that answers calls, plans, fails and forgets."""

import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.plan import SolveOutcome
from infinipipe_planner.config import InvalidAddressError, ServerConfig
from infinipipe_planner.errors import SolverLostError
from infinipipe_planner.job_records import JobId, PlanFigures
from infinipipe_planner.metrics import PlannerMetrics, serve_metrics
from support_service import (
    FakeSolver,
    job_spec,
    plan_request,
    refused,
    report_request,
    submission,
    until,
    with_service,
)

PREFIX = "infinipipe_planner_"
FIGURES = PlanFigures(1, 1, 1, makespan_s=2.0, bubble_ratio=0.1, solve_s=0.5, outcome=SolveOutcome.BEST_FOUND)
JOB = JobId("", "a")


def value(metrics: PlannerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def lead(metrics: PlannerMetrics, job: JobId = JOB) -> float | None:
    return value(metrics, "job_lead_steps", owner=job.owner, job_name=job.name)


def test_a_job_that_trains_shows_its_lead_its_times_its_plans_and_its_calls() -> None:
    metrics = PlannerMetrics()

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        for step in range(3):
            await stub.SubmitBatch(submission("a", step))
            await stub.GetPlan(plan_request("a", step))
        assert lead(metrics) == 3
        plan = (await stub.GetPlan(plan_request("a", 0))).plan
        await stub.ReportStep(report_request("a", 0, rank=0, step_s=1.5))
        await stub.ReportStep(report_request("a", 0, rank=1, step_s=1.25))
        assert lead(metrics) == 2
        assert value(metrics, "job_measured_step_seconds", owner="", job_name="a") == 1.5
        assert value(metrics, "job_predicted_step_seconds", owner="", job_name="a") == plan.estimate.makespan_s
        assert value(metrics, "jobs") == 1

    with_service(FakeSolver(), scenario, metrics=metrics)
    assert value(metrics, "plans_total", outcome="optimal") == 3
    assert value(metrics, "solve_seconds_count") == 3
    assert value(metrics, "queue_wait_seconds_count") == 3
    assert value(metrics, "plan_wait_seconds_count") == 4
    assert value(metrics, "rpcs_total", method="SubmitBatch", code="OK") == 3
    assert value(metrics, "rpcs_total", method="ReportStep", code="OK") == 2


def test_a_deleted_job_takes_its_series_with_it() -> None:
    metrics = PlannerMetrics()

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))
        await stub.ReportStep(report_request("a", 0))
        assert lead(metrics) is not None
        await stub.DeleteJob(pb.DeleteJobRequest(job="a"))

    with_service(FakeSolver(), scenario, metrics=metrics)
    labelled = [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("job_name") == "a"
    ]
    assert labelled == []
    assert value(metrics, "jobs") == 0


def test_batches_in_the_queue_callers_that_wait_and_the_store_are_counted_when_somebody_looks(tmp_path: Path) -> None:
    metrics, solver = PlannerMetrics(), FakeSolver(is_held=True)
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, store=str(tmp_path / "store.sqlite"))  # two slots

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        for step in range(5):
            await stub.SubmitBatch(submission("a", step))
        call = stub.GetPlan(plan_request("a", 4))
        await until(lambda: value(metrics, "waiting_callers") == 1)
        assert value(metrics, "running_batches") == 2
        assert value(metrics, "queued_batches") == 3
        solver.let_go()
        await call
        assert value(metrics, "queued_batches") == 0
        assert (value(metrics, "store_bytes") or 0) > 4096

    with_service(solver, scenario, config, metrics=metrics)


def test_failures_and_refusals_are_counted_by_their_status() -> None:
    metrics, solver = PlannerMetrics(), FakeSolver()
    solver.errors[0] = SolverLostError("died twice")

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        assert (await refused(stub.GetPlan(plan_request("a", 0))))[0] is grpc.StatusCode.INTERNAL
        assert (await refused(stub.GetJob(pb.GetJobRequest(job="b"))))[0] is grpc.StatusCode.NOT_FOUND
        assert (await refused(stub.GetPlan(plan_request("a", 7), timeout=0.2)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: value(metrics, "rpcs_total", method="GetPlan", code="CANCELLED") == 1)

    with_service(solver, scenario, metrics=metrics)
    assert value(metrics, "failures_total", code="INTERNAL") == 1
    assert value(metrics, "rpcs_total", method="GetPlan", code="INTERNAL") == 1
    assert value(metrics, "rpcs_total", method="GetJob", code="NOT_FOUND") == 1
    assert value(metrics, "plan_wait_seconds_count") == 0


def test_a_caller_without_a_token_is_counted_as_unauthenticated() -> None:
    metrics = PlannerMetrics()
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, tokens_text="alice 0123456789abcdef0123456789abcdef")

    async def scenario(stub: Any) -> None:
        assert (await refused(stub.ListJobs(pb.ListJobsRequest())))[0] is grpc.StatusCode.UNAUTHENTICATED

    with_service(FakeSolver(), scenario, config, metrics=metrics)
    assert value(metrics, "rpcs_total", method="ListJobs", code="UNAUTHENTICATED") == 1


def test_the_lead_of_a_run_that_goes_on_from_a_checkpoint_counts_from_there() -> None:
    metrics = PlannerMetrics()
    for step in (501, 500, 502):  # planned on two solvers, so not in order
        metrics.step_planned(JOB, step, FIGURES, 0.1)
    assert lead(metrics) == 3
    metrics.step_measured(JOB, 500, 2.0, 2.5)
    assert lead(metrics) == 2


def test_a_late_report_changes_nothing() -> None:
    metrics = PlannerMetrics()
    metrics.step_planned(JOB, 3, FIGURES, 0.1)
    metrics.step_measured(JOB, 3, 2.0, 2.5)
    metrics.step_measured(JOB, 2, 9.0, 9.0)
    assert lead(metrics) == 0
    assert value(metrics, "job_measured_step_seconds", owner="", job_name="a") == 2.5


def test_metrics_are_read_over_http_in_prometheus_own_format_until_the_end() -> None:
    metrics = PlannerMetrics()
    metrics.count_solver_restart("lost")
    with serve_metrics(metrics, "127.0.0.1:0") as url:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as response:
            families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
        with pytest.raises(InvalidAddressError, match="Address already in use"):  # noqa: SIM117  # the second is the test
            with serve_metrics(metrics, url.removeprefix("http://").removesuffix("/metrics")):
                pass
    restarts = families["infinipipe_planner_solver_restarts"].samples[0]
    assert (restarts.labels, restarts.value) == ({"reason": "lost"}, 1)
    assert "process_resident_memory_bytes" in families
    with pytest.raises(OSError, match="refused"):
        opener.open(url, timeout=10)
