"""What the RPCs promise, over a real socket, with a solver in the test's hands."""

from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import plan_pb2
from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import plan_from_proto
from infinipipe_contract.validate import validate
from infinipipe_planner.errors import InfeasibleBatchError
from support_service import (
    PROFILE,
    FakeSolver,
    job_spec,
    plan_request,
    refused,
    report_request,
    submission,
    until,
    with_service,
)

NOT_FOUND, FAILED_PRECONDITION = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION
ALREADY_EXISTS, INVALID_ARGUMENT = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT


def test_creating_a_job_again_opens_its_next_generation() -> None:
    async def scenario(stub: Any) -> None:
        first = await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        second = await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec(context_tokens=99)))

        assert (first.job.generation, second.job.generation) == (1, 2)
        found = (await stub.GetJob(pb.GetJobRequest(job="a"))).job
        assert found == second.job
        assert (found.spec.context_tokens, found.spec.profile.name) == (99, PROFILE.name)
        assert found.spec.options.policy == "search"
        assert found.create_time == first.job.create_time

    with_service(FakeSolver(), scenario)


def test_jobs_are_listed_by_name_and_forgotten_when_deleted() -> None:
    async def scenario(stub: Any) -> None:
        for name in ("b", "a", "c"):
            await stub.CreateJob(pb.CreateJobRequest(job=name, spec=job_spec()))
        await stub.DeleteJob(pb.DeleteJobRequest(job="b"))

        assert [job.name for job in (await stub.ListJobs(pb.ListJobsRequest())).jobs] == ["a", "c"]
        for call in (
            stub.GetJob(pb.GetJobRequest(job="b")),
            stub.DeleteJob(pb.DeleteJobRequest(job="b")),
            stub.ListPlans(pb.ListPlansRequest(job="b")),
            stub.SubmitBatch(submission("b", 0)),
            stub.GetPlan(plan_request("b", 0)),
            stub.ReportStep(report_request("b", 0)),
        ):
            assert await refused(call) == (NOT_FOUND, "there is no job 'b'")

    with_service(FakeSolver(), scenario)


def test_a_submitted_batch_is_planned_and_its_plan_is_valid_for_the_batch() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 3, (5, 7), target_token_count=4))

        response = await stub.GetPlan(plan_request("a", 3))

        plan = plan_from_proto(response.plan)
        validate(plan, (5, 7), PROFILE)
        assert (plan.job, plan.generation, plan.step, plan.target_token_count) == ("a", 1, 3, 4)

    with_service(FakeSolver(), scenario)


def test_submitting_returns_while_the_batch_is_still_being_solved() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        positions = [(await stub.SubmitBatch(submission("a", step))).queue_position for step in range(3)]

        assert positions == [0, 1, 2]
        states = [plan.state for plan in (await stub.ListPlans(pb.ListPlansRequest(job="a"))).plans]
        assert states == [pb.PLAN_STATE_PLANNING] * 3

    with_service(FakeSolver(is_held=True), scenario)


def test_the_same_batch_again_is_solved_once_and_keeps_its_place() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.SubmitBatch(submission("a", 1))

        again = await stub.SubmitBatch(submission("a", 1))

        assert again.queue_position == 1
        solver.let_go()
        plan = (await stub.GetPlan(plan_request("a", 1))).plan
        await stub.SubmitBatch(submission("a", 1))
        assert (await stub.GetPlan(plan_request("a", 1))).plan == plan
        assert solver.solved_steps == [0, 1]

    with_service(solver, scenario)


@pytest.mark.parametrize(
    "changed", [{"lengths": (5, 8)}, {"lengths": (7, 5)}, {"target_token_count": 3}], ids=["length", "order", "targets"]
)
def test_another_batch_for_the_same_step_is_refused(changed: dict[str, Any]) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0, (5, 7)))

        code, sentence = await refused(stub.SubmitBatch(submission("a", 0, **changed)))

        assert code is ALREADY_EXISTS
        assert "step 0 was submitted with another batch (2 sequences, 12 tokens" in sentence

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_a_generation_that_is_not_the_newest_is_refused_with_both_numbers(generation: int) -> None:
    async def scenario(stub: Any) -> None:
        for _ in range(2):
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        for call in (
            stub.SubmitBatch(submission("a", 0, generation=generation)),
            stub.GetPlan(plan_request("a", 0, generation=generation)),
            stub.ReportStep(report_request("a", 0, generation=generation)),
        ):
            code, sentence = await refused(call)
            assert code is FAILED_PRECONDITION
            assert f"generation {generation} is " in sentence
            assert "the newest is 2" in sentence

    with_service(FakeSolver(), scenario)


def test_a_new_generation_calls_off_the_solves_of_the_old_one() -> None:
    solver = FakeSolver(is_held=True)

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await until(lambda: solver.solved_steps == [0])

        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        await until(lambda: solver.cancelled_steps == [0])
        solver.let_go()
        await stub.SubmitBatch(submission("a", 0, (9, 9, 9), generation=2))
        plan = (await stub.GetPlan(plan_request("a", 0, generation=2))).plan
        assert plan.generation == 2
        assert len(plan.pipelines[0].chunks[0].slices) == 3

    with_service(solver, scenario)


def test_the_list_of_plans_tells_predictions_measurements_and_failures() -> None:
    solver = FakeSolver()
    solver.errors[1] = InfeasibleBatchError(1, 2e9, 1e9, "use more stages")

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        for step in (1, 0):
            await stub.SubmitBatch(submission("a", step))
        plan = (await stub.GetPlan(plan_request("a", 0))).plan
        await refused(stub.GetPlan(plan_request("a", 1)))
        for rank, step_s in ((0, 1.5), (1, 2.5)):
            await stub.ReportStep(report_request("a", 0, rank=rank, step_s=step_s))

        ready, failed = (await stub.ListPlans(pb.ListPlansRequest(job="a"))).plans

        assert (ready.step, ready.state, failed.step, failed.state) == (
            0,
            pb.PLAN_STATE_READY,
            1,
            pb.PLAN_STATE_FAILED,
        )
        assert (ready.sequence_count, ready.token_count, ready.chunk_count, ready.pipeline_count) == (2, 12, 1, 1)
        assert (ready.makespan_s, ready.bubble_ratio) == (plan.estimate.makespan_s, plan.estimate.bubble_ratio)
        assert (ready.measured_s, ready.solve_s, ready.outcome) == (2.5, plan.report.solve_s, plan.report.outcome)
        assert "stage 1 needs 2,000,000,000 bytes" in failed.failure
        job = (await stub.GetJob(pb.GetJobRequest(job="a"))).job
        assert (job.submitted_step_count, job.planned_step_count) == (2, 1)

    with_service(solver, scenario)


def test_reports_come_back_with_the_plan_by_rank() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))
        for rank in (2, 0, 1):
            await stub.ReportStep(report_request("a", 0, rank=rank, step_s=1.0 + rank, loss=4.5))

        reports = (await stub.GetPlan(plan_request("a", 0))).reports

        assert [(report.rank, report.step_s, report.loss) for report in reports] == [
            (0, 1.0, 4.5),
            (1, 2.0, 4.5),
            (2, 3.0, 4.5),
        ]

    with_service(FakeSolver(), scenario)


def test_reports_of_two_thousand_ranks_come_in_parts_and_their_count_with_each() -> None:
    kind = plan_pb2.ACTION_KIND_FORWARD
    actions = [pb.ActionMeasurement(kind=kind, chunk_index=n, start_s=n, end_s=n + 0.5) for n in range(400)]

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))
        for rank in range(2_000):
            await stub.ReportStep(report_request("a", 0, rank=rank, actions=actions))

        response = await stub.GetPlan(plan_request("a", 0))
        reports, part_count = list(response.reports), 1
        assert response.plan.job == "a"
        while len(reports) < response.report_count:
            request = plan_request("a", 0)
            request.after_rank = reports[-1].rank
            response = await stub.GetPlan(request)
            assert not response.HasField("plan")
            reports += response.reports
            part_count += 1

        assert [report.rank for report in reports] == list(range(2_000))
        assert sum(report.ByteSize() for report in reports) > 16 * 2**20
        assert part_count < 20

    with_service(FakeSolver(), scenario, timeout_s=120)


def test_what_a_report_carries_in_fields_that_nobody_knows_is_not_kept() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))
        request = report_request("a", 0)
        known_bytes = request.report.ByteSize()
        request.report.MergeFromString(b"\xfa\x3e\x80\x80\x04" + bytes(2**16))  # field 1007

        await stub.ReportStep(request)

        (report,) = (await stub.GetPlan(plan_request("a", 0))).reports
        assert request.report.ByteSize() > 2**16
        assert report.ByteSize() == known_bytes

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize("figures", [{"step_s": float("nan")}, {"busy_s": -1.0}, {"rank": -1}])
def test_a_report_with_a_senseless_figure_is_refused(figures: dict[str, Any]) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))

        code, sentence = await refused(stub.ReportStep(report_request("a", 0, **figures)))

        assert code is INVALID_ARGUMENT
        name, value = next(iter(figures.items()))
        assert f"report.{name} is {value}" in sentence

    with_service(FakeSolver(), scenario)


def test_a_report_about_a_step_without_a_plan_is_refused() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        code, sentence = await refused(stub.ReportStep(report_request("a", 7)))

        assert (code, "step 7 has no plan" in sentence) == (FAILED_PRECONDITION, True)

    with_service(FakeSolver(), scenario)


def test_solving_without_a_job_keeps_nothing() -> None:
    async def scenario(stub: Any) -> None:
        request = pb.SolvePlanRequest(profile=job_spec().profile, lengths_tokens=(3, 4))

        plan = (await stub.SolvePlan(request)).plan

        assert (plan.job, plan.generation, plan.step) == ("", 0, 0)
        assert sum(s.length_tokens for s in plan.pipelines[0].chunks[0].slices) == 7
        assert not (await stub.ListJobs(pb.ListJobsRequest())).jobs

    with_service(FakeSolver(), scenario)
