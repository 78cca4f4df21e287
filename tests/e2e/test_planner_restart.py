"""A planner that is killed and started again, with real processes: no step is lost or doubled, plans are the same."""

import concurrent.futures
import contextlib
import itertools
import os
import random
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.validate import validate
from infinipipe_executor.errors import PlannerUnavailableError
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_e2e.runs import torchrun, write_run
from support_service import PROFILE
from support_service.process import ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CONTEXT_TOKENS = 65_536
WAIT_S = 120.0
WITHOUT_RAY = ("--workers", "0")
POLICY = "paper"


def lengths_of(step: int, count: int) -> tuple[int, ...]:
    draw = random.Random(step)
    return tuple(max(1, min(CONTEXT_TOKENS, round(draw.lognormvariate(6.6, 1.75)))) for _ in range(count))


def expected(step: int, lengths: tuple[int, ...]) -> ExecutionPlan:
    """The plan that a planner which is left alone makes."""
    return solve_plan(lengths, PROFILE, PlanOptions(policy=POLICY), job="a", generation=1, step=step)


class Planner:
    """`infinipipe serve` on one port with one store, however often it is killed."""

    def __init__(self, store: Path, *options: str) -> None:
        self._options = ("--store", str(store), *options)
        self._below: set[int] = set()
        self._process = ServiceProcess(*self._options).wait_ready()
        self.address = self._process.address

    def kill(self) -> None:
        self._below |= set(self._process.descendants())
        self._process.kill()
        self._process.close()

    def start_again(self, prelude: str = "") -> None:
        self._process = ServiceProcess(*self._options, "--listen", self.address, prelude=prelude).wait_ready()
        assert self._process.address == self.address

    def close(self) -> str:
        """Stop; end what Ray left behind after a kill, which finds out by itself only within a minute."""
        log = self._process.close()
        for pid in self._below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return log


@contextlib.contextmanager
def running(store: Path, *options: str) -> Iterator[Planner]:
    planner = Planner(store, *options)
    try:
        yield planner
    finally:
        planner.close()


def job_at(address: str) -> pb.Job:
    with grpc.insecure_channel(address) as channel:
        stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        job: pb.Job = stub.GetJob(pb.GetJobRequest(job="a"), timeout=WAIT_S, wait_for_ready=True).job
        return job


def planned_count(address: str) -> int:
    """Count the planned steps of the job; 0 before there is one."""
    try:
        return job_at(address).planned_step_count
    except grpc.RpcError:
        return 0


def steps_at(address: str) -> list[tuple[int, int]]:
    """Steps that the planner holds, with their states."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        plans = stub.ListPlans(pb.ListPlansRequest(job="a"), timeout=WAIT_S, wait_for_ready=True).plans
        return [(plan.step, plan.state) for plan in plans]


@pytest.mark.parametrize("options", [WITHOUT_RAY, ("--workers", "2")], ids=["without Ray", "with Ray"])
def test_steps_planned_solved_and_queued_at_the_kill_get_the_same_plans_from_the_next_planner(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    batches = [lengths_of(0, 64), lengths_of(1, 3_000), lengths_of(2, 64), lengths_of(3, 64)]
    with running(tmp_path / "planner.sqlite", *options) as planner, PlanClient(planner.address) as client:
        generation = client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS, policy=POLICY)
        client.submit_batch(0, batches[0])
        first = client.fetch_plan(0, timeout_s=WAIT_S)
        for step in (1, 2):
            client.submit_batch(step, batches[step])
        waiting = [waiting_client(planner.address, generation, step) for step in (1, 2)]
        assert steps_at(planner.address)[:2] == [(0, pb.PLAN_STATE_READY), (1, pb.PLAN_STATE_PLANNING)]

        planner.kill()
        planner.start_again()

        client.submit_batch(1, batches[1])  # an executor that got no answer asks again
        again = [client.fetch_plan(0, timeout_s=WAIT_S), *(call.result(WAIT_S) for call in waiting)]
        client.submit_batch(3, batches[3])
        again.append(client.fetch_plan(3, timeout_s=WAIT_S))
        client.report_step(0, RankReport(rank=0, stage_index=0, step_s=1.0, busy_s=1.0, plan_wait_s=0.0))
        assert steps_at(planner.address) == [(step, pb.PLAN_STATE_READY) for step in range(4)]

    assert again[0] == first
    for step, plan in enumerate(again):
        validate(plan, batches[step], PROFILE)
        assert plan.digest == expected(step, batches[step]).digest


def waiting_client(address: str, generation: int, step: int) -> concurrent.futures.Future[ExecutionPlan]:
    """Another rank, which waits for a plan all the while."""
    result: concurrent.futures.Future[ExecutionPlan] = concurrent.futures.Future()

    def wait() -> None:
        with PlanClient(address) as client:
            client.join_job("a", generation)
            try:
                result.set_result(client.fetch_plan(step, timeout_s=WAIT_S))
            except Exception as error:
                result.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    return result


def test_a_run_goes_on_through_kills_at_random_moments_and_no_step_is_lost_or_doubled(tmp_path: Path) -> None:
    digests: dict[int, str] = {}
    is_enough = threading.Event()
    with running(tmp_path / "planner.sqlite", *WITHOUT_RAY) as planner:

        def train() -> None:
            with PlanClient(planner.address, call_timeout_s=WAIT_S) as client:
                client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS, policy=POLICY)
                client.submit_batch(0, lengths_of(0, 200))
                submitted = 0
                for step in itertools.count():
                    if not is_enough.is_set():
                        submitted = step + 1
                        client.submit_batch(submitted, lengths_of(submitted, 200))
                    digests[step] = client.fetch_plan(step, timeout_s=WAIT_S).digest
                    report = RankReport(rank=0, stage_index=0, step_s=1.0, busy_s=1.0, plan_wait_s=0.0)
                    client.report_step(step, report)
                    if step == submitted:
                        return

        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            training = thread.submit(train)
            for _ in range(4):
                with contextlib.suppress(TimeoutError):
                    training.result(random.uniform(0.1, 0.8))  # an error of the training ends the test
                planner.kill()
                planner.start_again()
            is_enough.set()
            training.result(WAIT_S)
        held = steps_at(planner.address)

    step_count = len(held)
    assert held == [(step, pb.PLAN_STATE_READY) for step in range(step_count)]
    assert step_count - 1 <= len(digests) <= step_count
    assert digests == {step: expected(step, lengths_of(step, 200)).digest for step in range(len(digests))}
    connection = sqlite3.connect(tmp_path / "planner.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT count(*) FROM reports").fetchone() == (len(digests),)
    connection.close()


def test_four_workers_train_on_while_their_planner_is_killed_and_started_again(tmp_path: Path) -> None:
    config = write_run(tmp_path, changes={"job": {"name": "a", "steps": 30}})
    with (
        running(tmp_path / "planner.sqlite", *WITHOUT_RAY) as planner,
        concurrent.futures.ThreadPoolExecutor(1) as thread,
    ):
        training = thread.submit(torchrun, config, planner.address, ranks=4)
        while planned_count(planner.address) < 4 and not training.done():
            time.sleep(0.02)

        planner.kill()
        assert not training.done(), training.result().output
        planner.start_again()

        ended = training.result()
        held = steps_at(planner.address)
        generation = job_at(planner.address).generation

    assert ended.code == 0, ended.output
    steps = [int(step) for step in re.findall(r"^step +(\d+) of 30  loss", ended.output, re.MULTILINE)]
    assert steps == list(range(30)), ended.output
    assert held == [(step, pb.PLAN_STATE_READY) for step in range(30)]
    assert generation == 1


def test_a_full_disk_is_told_to_the_client_and_planning_goes_on_when_there_is_room(tmp_path: Path) -> None:
    store = tmp_path / "planner.sqlite"
    full_disk = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))"
    with running(store, *WITHOUT_RAY) as planner, PlanClient(planner.address) as client:
        planner.kill()
        planner.start_again(full_disk)
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS, policy=POLICY)
        taken = 0
        with pytest.raises(PlannerUnavailableError, match=rf"cannot write the store {store}: "):
            for taken in range(100):
                client.submit_batch(taken, lengths_of(taken, 500), timeout_s=2.0)
        assert taken > 1

        planner.kill()
        planner.start_again()

        client.submit_batch(taken, lengths_of(taken, 500))
        for step in range(taken + 1):
            validate(client.fetch_plan(step, timeout_s=WAIT_S), lengths_of(step, 500), PROFILE)
        assert steps_at(planner.address) == [(step, pb.PLAN_STATE_READY) for step in range(taken + 1)]


def test_a_wall_clock_that_jumps_by_hours_changes_nothing(tmp_path: Path) -> None:
    jumping = (
        "import itertools, time; now, sign = time.time, itertools.cycle((1, -1)); "
        "time.time = lambda: now() + 3600 * next(sign)"
    )
    with running(tmp_path / "planner.sqlite", *WITHOUT_RAY) as planner, PlanClient(planner.address) as client:
        planner.kill()
        planner.start_again(jumping)
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS, policy=POLICY)
        with pytest.raises(PlannerUnavailableError, match="did not answer GetPlan within 1.5 s"):
            client.fetch_plan(0, timeout_s=1.5)

        for step in range(3):
            client.submit_batch(step, lengths_of(step, 64))
        digests = [client.fetch_plan(step, timeout_s=WAIT_S).digest for step in range(3)]

    assert digests == [expected(step, lengths_of(step, 64)).digest for step in range(3)]
