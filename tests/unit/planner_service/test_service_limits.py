"""What the service refuses, and that it lives on: lengths, sizes, names, pings, addresses."""

import asyncio
import dataclasses
import socket
import time
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from infinipipe.planner.v1 import plan_pb2, planner_service_pb2_grpc
from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_planner.config import (
    InvalidAddressError,
    ServerConfig,
    default_num_workers,
    format_address,
    parse_address,
)
from infinipipe_planner.server import SERVICE_NAME, check_listenable, start_server
from support_service import (
    CONFIG,
    CONTEXT_TOKENS,
    PROFILE,
    FakeSolver,
    job_spec,
    plan_request,
    refused,
    report_request,
    submission,
    with_service,
)


def measured(**changes: Any) -> pb.ActionMeasurement:
    """When an action ran, with changes."""
    fields: dict[str, Any] = {"kind": plan_pb2.ACTION_KIND_FORWARD, "start_s": 0.0, "end_s": 0.5}
    return pb.ActionMeasurement(**(fields | changes))


INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("lengths", "sentence"),
    [
        ((), "the batch has no sequences"),
        ((5, 0), "sequence 1 has 0 tokens"),
        ((-3,), "sequence 0 has -3 tokens"),
        ((CONTEXT_TOKENS, CONTEXT_TOKENS + 1), f"sequence 1 has {CONTEXT_TOKENS + 1} tokens, the context allows"),
        ((2**63 - 1,), f"sequence 0 has {2**63 - 1} tokens"),
        ((1,) * 1_000_000, "the batch has 1000000 sequences, at most 131072 are allowed"),
    ],
    ids=["none", "zero", "negative", "beyond the context", "largest number", "a million"],
)
def test_bad_lengths_are_answered_with_a_sentence_and_the_service_lives_on(
    lengths: tuple[int, ...], sentence: str
) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        code, answer = await refused(stub.SubmitBatch(submission("a", 0, lengths)))

        assert code is INVALID_ARGUMENT
        assert sentence in answer
        await stub.SubmitBatch(submission("a", 0))
        assert (await stub.GetPlan(plan_request("a", 0))).plan.step == 0

    with_service(FakeSolver(), scenario)


def test_a_hundred_thousand_sequences_fit_in_the_messages_both_ways() -> None:
    lengths = tuple(1 + index % CONTEXT_TOKENS for index in range(100_000))

    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0, lengths))

        plan = (await stub.GetPlan(plan_request("a", 0))).plan

        assert len(plan.pipelines[0].chunks[0].slices) == 100_000

    with_service(FakeSolver(), scenario)


def test_a_message_of_64_mb_is_refused_with_its_size_and_the_limit() -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        # A varint of this size takes 4 bytes on the wire.
        request = submission("a", 0, (2**27,) * 16_000_000)

        code, answer = await refused(stub.SubmitBatch(request))

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{request.ByteSize()} vs. {16 * 2**20}" in answer
        assert request.ByteSize() >= 64_000_000
        await stub.SubmitBatch(submission("a", 0))

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "a\n", "x" * 129, "x" * 1_000_000])
def test_a_job_name_of_other_characters_or_length_is_refused(name: str) -> None:
    async def scenario(stub: Any) -> None:
        code, answer = await refused(stub.CreateJob(pb.CreateJobRequest(job=name, spec=job_spec())))

        assert code is INVALID_ARGUMENT
        assert f'has {len(name)} characters, it must be 1 to 128 letters, digits, ".", "_" and "-"' in answer
        assert len(answer) < 300

    with_service(FakeSolver(), scenario)


def test_a_job_name_of_every_allowed_kind_of_character_is_accepted() -> None:
    async def scenario(stub: Any) -> None:
        name = "A-z_0.9" + "x" * 121
        assert (await stub.CreateJob(pb.CreateJobRequest(job=name, spec=job_spec()))).job.name == name

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"context_tokens": 0}, "context_tokens is 0, it must be at least 1"),
        ({"profile": None}, "profile is missing"),
        ({"options": pb.PlanOptions(policy="papr")}, "unknown policy 'papr'; did you mean 'paper'?"),
        ({"context_tokens": 2**31}, "context_tokens is 2147483648, it must be at least 1 and at most 2147483647"),
        ({"options": pb.PlanOptions(max_slice_count=-1)}, "max_slice_count is -1"),
        ({"options": pb.PlanOptions(max_slice_count=1_025)}, "max_slice_count is 1025, it must be from 0 to 1024"),
        ({"options": pb.PlanOptions(node_limit=2**40)}, f"node_limit is {2**40}, it must be from 0 to 100000"),
        ({"options": pb.PlanOptions(budget_s=3_601)}, "budget_s is 3601.0, it must be from 0 to 3600"),
        (
            {"options": pb.PlanOptions(budget_s=300)},
            "budget_s is 300, it must be less than 300, after which the planner stops a solve (--max-solve-s)",
        ),
        ({"options": pb.PlanOptions(budget_s=float("nan"))}, "budget_s is nan, it must be from 0 to 3600"),
        ({"options": pb.PlanOptions(gap_ratio=1.0)}, "gap_ratio is 1.0, it must be in [0, 1)"),
        ({"options": pb.PlanOptions(policy="x" * 100_000)}, "unknown policy"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused_and_not_created(changes: dict[str, Any], sentence: str) -> None:
    async def scenario(stub: Any) -> None:
        code, answer = await refused(stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec(**changes))))

        assert code is INVALID_ARGUMENT
        assert sentence in answer
        assert not (await stub.ListJobs(pb.ListJobsRequest())).jobs

    with_service(FakeSolver(), scenario)


def test_a_profile_that_makes_no_sense_is_refused_with_its_key() -> None:
    async def scenario(stub: Any) -> None:
        spec = job_spec()
        spec.profile.cluster.pp_size = 5
        for call in (
            stub.CreateJob(pb.CreateJobRequest(job="a", spec=spec)),
            stub.SolvePlan(pb.SolvePlanRequest(profile=spec.profile, lengths_tokens=(3,))),
        ):
            code, answer = await refused(call)
            assert code is INVALID_ARGUMENT
            assert f"model.layers is {PROFILE.model.layers}, it must be at least cluster.pp_size, which is 5" in answer

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": -1}, "step is -1, it must be at least 0"),
        ({"step": 0, "target_token_count": 13}, "target_token_count is 13, it must be from 0 to the batch's 12 tokens"),
        ({"step": 0, "target_token_count": -1}, "target_token_count is -1"),
    ],
)
def test_a_submission_that_makes_no_sense_is_refused(changes: dict[str, Any], sentence: str) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))

        code, answer = await refused(stub.SubmitBatch(submission("a", **changes)))

        assert code is INVALID_ARGUMENT
        assert sentence in answer

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"rank": -1}, "report.rank is -1, it must be at least 0 and at most 1048575"),
        ({"rank": 2**20}, "report.rank is 1048576, it must be at least 0 and at most 1048575"),
        ({"stage_index": 1_024}, "report.stage_index is 1024, it must be at least 0 and at most 1023"),
        ({"replica_index": -1}, "report.replica_index is -1, it must be at least 0 and at most 4095"),
        ({"step_s": -1.0}, "report.step_s is -1.0, it must be a finite number of at least 0"),
        ({"busy_s": float("inf")}, "report.busy_s is inf, it must be a finite number of at least 0"),
        ({"plan_wait_s": float("nan")}, "report.plan_wait_s is nan, it must be a finite number of at least 0"),
        (
            {"peak_bytes": 1e19},
            "report.peak_bytes is 1e+19, it must be a finite number of at least 0 and at most 1e+18",
        ),
        ({"loss": float("nan")}, "report.loss is nan, it must be a finite number or absent"),
        (
            {"actions": [measured(kind=plan_pb2.ACTION_KIND_UNSPECIFIED)]},
            "report.actions[0].kind is 0, it must be one of",
        ),
        ({"actions": [measured(), measured(chunk_index=-1)]}, "report.actions[1] is about chunk -1 of pipeline 0"),
        ({"actions": [measured(start_s=1.0)]}, "report.actions[0] lasts from 1.0 s to 0.5 s"),
        ({"actions": [measured(end_s=float("nan"))]}, "report.actions[0] lasts from 0.0 s to nan s"),
        ({"actions": [measured()] * 131_073}, "report.actions is 131073, it must be at least 0 and at most 131072"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_with_its_field(figures: dict[str, Any], sentence: str) -> None:
    async def scenario(stub: Any) -> None:
        await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
        await stub.SubmitBatch(submission("a", 0))
        await stub.GetPlan(plan_request("a", 0))

        code, answer = await refused(stub.ReportStep(report_request("a", 0, **figures)))

        assert code is INVALID_ARGUMENT
        assert sentence in answer
        assert not (await stub.GetPlan(plan_request("a", 0))).reports

    with_service(FakeSolver(), scenario)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "x" * 4_097}, "profile: name is 4097 characters, it must be at most 4096"),
        ({"model": {"layers": 65_537}}, "profile: model.layers is 65537, it must be at most 65536"),
        ({"model": {"vocab": -1}}, "profile: model.vocab is -1, it must be at least 0"),
        ({"cluster": {"dp_size": 4_097}}, "profile: cluster.dp_size is 4097, it must be at most 4096"),
        ({"cluster": {"sp_size": 65_537}}, "profile: cluster.sp_size is 65537, it must be at most 65536"),
        (
            {"cluster": {"device_memory_bytes": 1e19}},
            "profile: cluster.device_memory_bytes is 1e+19, it must be at most",
        ),
        ({"forward": {"beta1": 1e7}}, "profile: forward.beta1 is 10000000.0, it must be at most 1e+06"),
        (
            {"backward": {"alpha1": 0.0, "alpha2": 0.0}},
            "profile: backward.alpha1 + alpha2 is 0.0, it must be at least 1e-",
        ),
        ({"p2p": {"bandwidth_bytes_per_s": 0.5}}, "profile: p2p.bandwidth_bytes_per_s is 0.5, it must be at least 1"),
    ],
)
def test_a_profile_beyond_every_machine_is_refused_with_its_key(change: dict[str, Any], sentence: str) -> None:
    async def scenario(stub: Any) -> None:
        spec = job_spec()
        for key, value in change.items():
            if isinstance(value, dict):
                for name, number in value.items():
                    setattr(getattr(spec.profile, key), name, number)
            else:
                setattr(spec.profile, key, value)

        code, answer = await refused(stub.CreateJob(pb.CreateJobRequest(job="a", spec=spec)))

        assert code is INVALID_ARGUMENT
        assert answer.startswith(sentence)

    with_service(FakeSolver(), scenario)


def test_a_request_that_is_no_message_is_the_callers_fault() -> None:
    async def run() -> tuple[grpc.StatusCode, str]:
        server = await start_server(FakeSolver(), CONFIG)
        async with grpc.aio.insecure_channel(server.address) as channel:
            open_call: Any = channel.unary_unary
            answer = await refused(open_call("/infinipipe.planner.v1.PlannerService/SubmitBatch")(b"\xff\xff"))
        await server.stop(0.0)
        return answer

    assert asyncio.run(run()) == (INVALID_ARGUMENT, "the request is not a message of this method's type")


async def wait_with_pings(config: ServerConfig, ping_interval_s: float, wait_s: float) -> grpc.StatusCode:
    """Wait for a plan that never comes, with client keepalive; return how the wait ended."""
    server = await start_server(FakeSolver(), config)
    options = [
        ("grpc.keepalive_time_ms", int(ping_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    try:
        async with grpc.aio.insecure_channel(server.address, options=options) as channel:
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]
            await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
            code, _ = await refused(stub.GetPlan(plan_request("a", 0), timeout=wait_s))
            return code
    finally:
        await server.stop(0.0)


def test_clients_may_ping_at_the_documented_interval_and_are_sent_away_when_they_ping_more_often() -> None:
    # gRPC sends keepalive pings once a second at most; the third one too many ends the connection.
    allowing = dataclasses.replace(CONFIG, min_ping_interval_s=0.5)

    async def run() -> tuple[grpc.StatusCode, grpc.StatusCode]:
        few, many = await asyncio.gather(wait_with_pings(allowing, 1.0, 10.0), wait_with_pings(CONFIG, 1.0, 10.0))
        return few, many

    assert asyncio.run(run()) == (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


def test_a_client_that_pings_every_five_seconds_gets_the_plan_of_a_solve_of_25_seconds() -> None:
    solver = FakeSolver(is_held=True)
    options = [
        ("grpc.keepalive_time_ms", 5_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]

    async def run() -> float:
        server = await start_server(solver, ServerConfig(listen="127.0.0.1:0"))  # intervals as they are by default
        try:
            async with grpc.aio.insecure_channel(server.address, options=options) as channel:
                stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]
                await stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()))
                await stub.SubmitBatch(submission("a", 0))
                started_s = time.monotonic()
                asyncio.get_running_loop().call_later(25.0, solver.let_go)
                await stub.GetPlan(plan_request("a", 0), timeout=60)
                return time.monotonic() - started_s
        finally:
            await server.stop(0.0)

    assert asyncio.run(run()) >= 24.9


def test_the_documented_ping_interval_is_below_the_ten_seconds_that_clients_use() -> None:
    assert ServerConfig().min_ping_interval_s < 10.0


def test_health_tells_that_the_planner_serves() -> None:
    async def run() -> None:
        server = await start_server(FakeSolver(), CONFIG)
        async with grpc.aio.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", SERVICE_NAME):
                response = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert response.status == health_pb2.HealthCheckResponse.SERVING
            code, _ = await refused(health.Check(health_pb2.HealthCheckRequest(service="other")))
            assert code is grpc.StatusCode.NOT_FOUND
        await server.stop(0.0)

    asyncio.run(run())


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(InvalidAddressError, match=f"cannot listen on {address}: another process listens there"):
            check_listenable(address)


def test_two_services_never_share_a_port() -> None:
    async def run() -> None:
        first = await start_server(FakeSolver(), CONFIG)
        try:
            with pytest.raises(InvalidAddressError, match=f"cannot listen on {first.address}"):
                await start_server(FakeSolver(), dataclasses.replace(CONFIG, listen=first.address))
        finally:
            await first.stop(0.0)

    asyncio.run(run())


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidAddressError, match=r"cannot listen on 192\.0\.2\.77:0: "):
        check_listenable("192.0.2.77:0")


def test_loopback_is_told_from_addresses_that_others_reach() -> None:
    assert check_listenable(ServerConfig().listen.rpartition(":")[0] + ":0").is_loopback
    assert check_listenable("localhost:0").is_loopback
    assert not check_listenable("0.0.0.0:0").is_loopback


@pytest.mark.parametrize("address", ["", "host", ":50051", "host:", "host:x", "host:-1", "host:65536", "::1:50051"])
def test_an_address_that_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidAddressError, match="address"):
        parse_address(address)


def test_addresses_are_split_into_host_and_port() -> None:
    assert parse_address("127.0.0.1:50051") == ("127.0.0.1", 50051)
    assert parse_address("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "[::1]:0", "planner.example:443"])
def test_an_address_is_written_as_it_was_read(address: str) -> None:
    assert format_address(*parse_address(address)) == address


def test_the_default_number_of_workers_is_from_1_to_8() -> None:
    assert 1 <= default_num_workers() <= 8
