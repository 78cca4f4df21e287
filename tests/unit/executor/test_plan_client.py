"""The executor's client of the planning service, against a real service on a real socket."""

import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.validate import validate
from infinipipe_executor import call_waiting, planner_calls
from infinipipe_executor.errors import (
    BatchRefusedError,
    ConfigError,
    ExecutorError,
    JobRefusedError,
    PlanFailedError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from infinipipe_executor.plan_client import ActionMeasurement, PlanClient, RankReport
from infinipipe_planner import status
from infinipipe_planner.config import MAX_MESSAGE_BYTES, MIN_CLIENT_PING_INTERVAL_S, ServerConfig
from infinipipe_planner.errors import InfeasibleBatchError
from support_service import CONTEXT_TOKENS, PROFILE, BackgroundService, background_service, plan_of_one_chunk


@pytest.fixture
def service() -> Iterator[BackgroundService]:
    with background_service() as running:
        yield running


@pytest.fixture
def client(service: BackgroundService) -> Iterator[PlanClient]:
    with PlanClient(service.address, call_timeout_s=10) as made:
        made.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        yield made


@pytest.fixture
def free_address() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_fetched_plan_is_the_one_that_was_planned(client: PlanClient) -> None:
    assert client.submit_batch(2, (5, 7), target_token_count=6) == 0

    plan = client.fetch_plan(2, timeout_s=10)

    validate(plan, (5, 7), PROFILE)
    assert plan == plan_of_one_chunk((5, 7), job="a", generation=1, step=2, target_token_count=6)


def test_lengths_that_are_no_step_are_planned_without_a_trace_in_the_job(
    service: BackgroundService, client: PlanClient
) -> None:
    plan = client.solve_plan([700, 300], PROFILE, timeout_s=20)

    validate(plan, [700, 300], PROFILE)
    assert (plan.job, plan.generation, plan.step) == ("", 0, 0)
    with pytest.raises(PlanFailedError, match="sequence 1 has 0 tokens"):
        client.solve_plan([700, 0], PROFILE, timeout_s=20)
    with grpc.insecure_channel(service.address) as channel:
        stub = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        assert not stub.ListPlans(pb.ListPlansRequest(job="a"), timeout=10).plans


def test_another_rank_joins_the_generation_that_one_opened(service: BackgroundService, client: PlanClient) -> None:
    generation = client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
    client.submit_batch(0, (5, 7))

    with PlanClient(service.address) as other:
        other.join_job("a", generation)
        assert other.fetch_plan(0, timeout_s=10).generation == 2


def test_what_a_rank_measured_reaches_the_planner(service: BackgroundService, client: PlanClient) -> None:
    client.submit_batch(0, (5, 7))
    client.fetch_plan(0, timeout_s=10)

    client.report_step(
        0,
        RankReport(
            rank=3,
            stage_index=1,
            step_s=1.5,
            busy_s=1.25,
            plan_wait_s=0.5,
            peak_bytes=1024,
            loss=2.5,
            actions=(ActionMeasurement(0, ActionKind.BACKWARD, 4, 0.25, 0.75),),
        ),
    )

    with grpc.insecure_channel(service.address) as channel:
        stub = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        (report,) = stub.GetPlan(pb.GetPlanRequest(job="a", generation=1, step=0), timeout=10).reports
    assert (report.rank, report.stage_index, report.step_s, report.busy_s) == (3, 1, 1.5, 1.25)
    assert (report.plan_wait_s, report.peak_bytes, report.loss) == (0.5, 1024, 2.5)
    (action,) = report.actions
    assert (action.pipeline_index, action.chunk_index, action.start_s, action.end_s) == (0, 4, 0.25, 0.75)
    assert action.kind == 2


def test_waiting_for_a_plan_tells_progress_and_ends_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_waiting, "PROGRESS_INTERVAL_S", 0.05)
    waited_s: list[float] = []
    with background_service(is_held=True) as service, PlanClient(service.address) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))

        def on_wait(seconds: float) -> None:
            waited_s.append(seconds)
            if len(waited_s) == 3:
                service.call(service.solver.let_go)

        assert client.fetch_plan(0, timeout_s=10, on_wait=on_wait).step == 0
    assert len(waited_s) >= 3
    assert waited_s == sorted(waited_s)
    assert waited_s[0] >= 0.05


def test_a_plan_that_does_not_come_in_time_is_an_error_with_address_and_seconds(
    service: BackgroundService, client: PlanClient
) -> None:
    with pytest.raises(PlannerUnavailableError) as caught:
        client.fetch_plan(9, timeout_s=0.2)

    assert str(caught.value) == f"the planner at {service.address} did not answer GetPlan within 0.2 s"


def test_no_planner_at_the_address_is_an_error_that_says_what_to_start(free_address: str) -> None:
    waited_s: list[float] = []
    client = PlanClient(free_address, call_timeout_s=0.5)

    with pytest.raises(PlannerUnavailableError) as created:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
    with pytest.raises(PlannerUnavailableError):
        client.fetch_plan(0, timeout_s=0.3, on_wait=waited_s.append)

    expected = f"no planner at {free_address} after 0.5 s: is `infinipipe serve` running there? ("
    assert str(created.value).startswith(expected)
    assert isinstance(created.value, ExecutorError)
    client.close()


def test_a_planner_that_starts_late_is_found(free_address: str) -> None:
    started: list[BackgroundService] = []

    def start() -> None:
        started.append(BackgroundService(ServerConfig(listen=free_address, grace_s=0.5)))

    timer = threading.Timer(0.5, start)
    timer.start()
    try:
        with PlanClient(free_address, call_timeout_s=20) as client:
            assert client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS) == 1
    finally:
        timer.join()
        for service in started:
            service.stop()


def test_a_planner_that_is_started_again_is_found_and_asked_the_same(service: BackgroundService) -> None:
    with PlanClient(service.address, call_timeout_s=20) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        service.stop()
        again = BackgroundService(ServerConfig(listen=service.address, grace_s=0.5))
        try:
            assert client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS) == 1
            client.submit_batch(0, (5, 7))
            assert client.fetch_plan(0, timeout_s=10).step == 0
        finally:
            again.stop()


def test_the_planners_no_to_a_job_is_its_sentence(service: BackgroundService) -> None:
    with PlanClient(service.address) as client:
        with pytest.raises(JobRefusedError, match=r"unknown policy 'papr'; did you mean 'paper'\?"):
            client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS, policy="papr")
        with pytest.raises(JobRefusedError, match="job name 'a b'"):
            client.create_job("a b", PROFILE, context_tokens=CONTEXT_TOKENS)


def test_the_planners_no_to_a_batch_is_its_sentence(client: PlanClient) -> None:
    with pytest.raises(BatchRefusedError, match="sequence 1 has 0 tokens"):
        client.submit_batch(0, (5, 0))
    client.submit_batch(0, (5, 7))
    with pytest.raises(BatchRefusedError, match="step 0 was submitted with another batch"):
        client.submit_batch(0, (5, 8))
    client.join_job("a", 7)
    with pytest.raises(BatchRefusedError, match="generation 7 is unknown, the newest is 1"):
        client.submit_batch(1, (5, 7))


def test_a_batch_that_cannot_be_planned_carries_the_planners_sentence(
    service: BackgroundService, client: PlanClient
) -> None:
    service.solver.errors[0] = InfeasibleBatchError(1, 2e9, 1e9, "use more stages")
    client.submit_batch(0, (5, 7))

    with pytest.raises(PlanFailedError, match=r"stage 1 needs 2,000,000,000 bytes .* use more stages"):
        client.fetch_plan(0, timeout_s=10)


def test_a_report_about_an_unknown_step_is_refused(client: PlanClient) -> None:
    with pytest.raises(PlannerRefusedError, match="step 5 has no plan"):
        client.report_step(5, RankReport(rank=0, stage_index=0, step_s=1.0, busy_s=1.0, plan_wait_s=0.0))


def test_a_plan_made_for_another_step_is_refused(service: BackgroundService, client: PlanClient) -> None:
    service.solver.step_offset = 1
    client.submit_batch(0, (5, 7))

    with pytest.raises(InvalidPlanError, match="the plan is of step 1, expected 0"):
        client.fetch_plan(0, timeout_s=10)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:port"])
def test_an_address_that_is_not_host_and_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        PlanClient(address)


def test_both_sides_allow_messages_of_the_same_size() -> None:
    options = dict(planner_calls.CHANNEL_OPTIONS)

    assert options["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES
    assert options["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES


def test_the_client_pings_less_often_than_the_planner_allows() -> None:
    assert dict(planner_calls.CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] > MIN_CLIENT_PING_INTERVAL_S * 1000


def test_a_full_queue_is_waited_for_as_long_as_the_planner_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, max_batches_per_job=1)
    monkeypatch.setattr(call_waiting, "PROGRESS_INTERVAL_S", 0.05)
    waited_s: list[float] = []
    with background_service(config, is_held=True) as service, PlanClient(service.address, call_timeout_s=20) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))
        started_s = time.monotonic()

        def on_wait(seconds: float) -> None:
            waited_s.append(seconds)
            service.call(service.solver.let_go)

        client.submit_batch(1, (5, 7), on_wait=on_wait)

        assert time.monotonic() - started_s > 0.9, "the planner asked for a second"
        assert client.fetch_plan(1, timeout_s=10).step == 1
    assert waited_s


def test_a_queue_that_stays_full_is_an_error_with_the_planners_sentence() -> None:
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, max_batches_per_job=1)
    with background_service(config, is_held=True) as service, PlanClient(service.address) as client:
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        client.submit_batch(0, (5, 7))

        with pytest.raises(PlannerUnavailableError) as caught:
            client.submit_batch(1, (5, 7), timeout_s=0.5)

    assert str(caught.value) == (
        f"the planner at {service.address} is too busy for SubmitBatch after 0.5 s: "
        "1 batches of job 'a' are unsolved, at most 1 may be; try again in 1 s"
    )


def test_both_sides_name_the_pause_alike() -> None:
    assert planner_calls.RETRY_PAUSE_KEY == status.RETRY_PAUSE_KEY
