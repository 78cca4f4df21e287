"""Ten thousand malformed messages: each is answered with a status that blames the caller, and the service lives on."""

# a solver is told more than it needs here

import asyncio
import collections
import dataclasses
import os
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from infinipipe.planner.v1 import plan_pb2, planner_service_pb2_grpc
from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe_contract.codec import profile_to_proto
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_planner.server import PlannerServer, start_server
from infinipipe_planner.solve_request import SolveRequest
from support_service import CONFIG, PROFILE, job_spec, plan_of_one_chunk, plan_request, submission
from support_service.mutations import faulty_message, mutated

EXAMPLES = 200
MESSAGES_PER_EXAMPLE = 50  # 10,000 in all
CALL_TIMEOUT_S = 5.0
WAIT_S = 0.02
GROWTH_BYTES = 64 * 2**20

ACTIONS = [
    pb.ActionMeasurement(pipeline_index=0, kind=plan_pb2.ACTION_KIND_FORWARD, chunk_index=0, start_s=0.0, end_s=0.5)
]
REPORT = pb.RankReport(rank=0, step_s=1.5, busy_s=1.0, loss=2.5, actions=ACTIONS)
VALID: Sequence[tuple[str, Message]] = (
    ("CreateJob", pb.CreateJobRequest(job="fuzzed", spec=job_spec(options=pb.PlanOptions(policy="paper")))),
    ("GetJob", pb.GetJobRequest(job="a")),
    ("ListJobs", pb.ListJobsRequest()),
    ("DeleteJob", pb.DeleteJobRequest(job="fuzzed")),
    ("SubmitBatch", submission("fuzzed", 1, target_token_count=6)),
    ("GetPlan", plan_request("a", 0)),
    ("ListPlans", pb.ListPlansRequest(job="a")),
    ("SolvePlan", pb.SolvePlanRequest(profile=profile_to_proto(PROFILE), lengths_tokens=(5, 7))),
    ("ReportStep", pb.ReportStepRequest(job="a", generation=1, step=0, report=REPORT)),
)

# OK: what was changed may be as good as before. The others tell the caller what is wrong with the request or with when
# it comes; none of them says that the service has a fault.
HONEST = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class QuickSolver:
    """Answers every batch with one chunk, whatever it is planned for."""

    async def solve(self, request: SolveRequest) -> ExecutionPlan:
        return plan_of_one_chunk(
            request.lengths,
            job=request.job,
            generation=request.generation,
            step=request.step,
            target_token_count=request.target_token_count,
        )


class Attacked:
    """A service, a channel to it, and what was answered so far."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.answers: collections.Counter[tuple[str, grpc.StatusCode]] = collections.Counter()
        self._server: PlannerServer = self.run(start_server(QuickSolver(), dataclasses.replace(CONFIG, max_jobs=20)))
        self.channel = self.run(self._open())
        self.stub: Any = planner_service_pb2_grpc.PlannerServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def close(self) -> None:
        self.run(self.channel.close())
        self.run(self._server.stop(0.0))
        self.loop.close()

    async def plan_one_batch(self, job: str) -> None:
        """Do what an executor does."""
        created = await self.stub.CreateJob(pb.CreateJobRequest(job=job, spec=job_spec()), timeout=CALL_TIMEOUT_S)
        generation = created.job.generation
        await self.stub.SubmitBatch(submission(job, 0, generation=generation), timeout=CALL_TIMEOUT_S)
        answer = await self.stub.GetPlan(plan_request(job, 0, generation), timeout=CALL_TIMEOUT_S)
        assert answer.plan.step == 0

    async def send(self, messages: Sequence[tuple[str, bytes]]) -> list[tuple[str, grpc.StatusCode, str]]:
        return await asyncio.gather(*[self._send(method, encoded) for method, encoded in messages])

    async def _send(self, method: str, encoded: bytes) -> tuple[str, grpc.StatusCode, str]:
        call: Any = self.channel.unary_unary(f"/infinipipe.planner.v1.PlannerService/{method}")
        try:
            await call(encoded, timeout=WAIT_S if method == "GetPlan" else CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.answers[method, error.code()] += 1
            return method, error.code(), error.details() or ""
        self.answers[method, grpc.StatusCode.OK] += 1
        return method, grpc.StatusCode.OK, ""

    async def _open(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self._server.address)


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    service = Attacked()
    service.run(service.plan_one_batch("a"))
    yield service
    service.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_honest(method: str, code: grpc.StatusCode) -> bool:
    """Whoever asks for a plan that is not there waits for it, until the time is up."""
    return code in HONEST or (method == "GetPlan" and code is grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.timeout(300)  # 10 to 15 s on a quiet core
def test_ten_thousand_malformed_messages_are_answered_honestly_and_leave_nothing_behind(attacked: Attacked) -> None:
    sizes: list[int] = []
    drawn = faulty_message(len(VALID))

    # A failure names the method and its status; looking for a shorter attack would take minutes.
    @settings(max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate])
    @given(st.lists(drawn, min_size=MESSAGES_PER_EXAMPLE, max_size=MESSAGES_PER_EXAMPLE))
    def attack(requests: list[tuple[int, list[int]]]) -> None:
        messages = [(VALID[index][0], mutated(VALID[index][1], faults)) for index, faults in requests]
        for method, code, sentence in attacked.run(attacked.send(messages)):
            assert is_honest(method, code), (method, code, sentence)
            assert code is not grpc.StatusCode.INVALID_ARGUMENT or sentence
        sizes.append(resident_bytes())

    attack()

    assert attacked.answers.total() >= EXAMPLES * MESSAGES_PER_EXAMPLE
    for method, _ in VALID:
        codes = {code for (its_method, code), count in attacked.answers.items() if its_method == method}
        assert grpc.StatusCode.INVALID_ARGUMENT in codes, method
        assert grpc.StatusCode.OK in codes, method
    assert max(sizes[-20:]) - max(sizes[EXAMPLES // 4 : EXAMPLES // 4 + 20]) < GROWTH_BYTES
    attacked.run(attacked.plan_one_batch("fuzzed"))
    attacked.run(attacked.plan_one_batch("a"))


def test_a_method_that_is_not_there_is_answered_as_such(attacked: Attacked) -> None:
    ((_, code, _),) = attacked.run(attacked.send([("NoSuchMethod", b"\xff")]))

    assert code is grpc.StatusCode.UNIMPLEMENTED
