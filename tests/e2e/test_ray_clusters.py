"""Planners and Ray clusters side by side on one machine."""

import concurrent.futures
import signal
import time
from typing import Any

import grpc
import pytest

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_contract.codec import plan_from_proto
from infinipipe_contract.plan import Pipeline
from infinipipe_contract.validate import validate
from support_e2e.ray_cluster import RAY_ENVIRONMENT, RayCluster, ray_cluster
from support_service import PROFILE, job_spec, plan_request, submission
from support_service.process import ServiceProcess, ray_directories, survivors

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CALL_TIMEOUT_S = 90.0
LENGTHS = [4_000, 1_500, 700, 300, 90, 20]


def plan_a_step(address: str) -> tuple[Pipeline, ...]:
    """Plan one step; return its pipelines."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        request = pb.CreateJobRequest(job="same-name", spec=job_spec())
        generation = stub.CreateJob(request, timeout=CALL_TIMEOUT_S).job.generation
        stub.SubmitBatch(submission("same-name", 0, LENGTHS, generation), timeout=CALL_TIMEOUT_S)
        plan = plan_from_proto(stub.GetPlan(plan_request("same-name", 0, generation), timeout=CALL_TIMEOUT_S).plan)
    validate(plan, LENGTHS, PROFILE)
    return plan.pipelines


def solvers_left(cluster: RayCluster, timeout_s: float = 20.0) -> list[int]:
    """Wait for the cluster to have no solver processes; return those that it still has."""
    deadline_s = time.monotonic() + timeout_s
    while (left := cluster.solver_processes()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left


def test_two_planners_and_two_ray_clusters_on_one_machine_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RAY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with ray_cluster(num_cpus=2) as cluster:
        guest, owner = ServiceProcess("--ray-address", cluster.address), ServiceProcess()
        try:
            guest.wait_ready()
            owner.wait_ready()
            assert len(cluster.solver_processes()) == 2
            guests_processes, owners_processes = guest.descendants(), owner.descendants()
            assert not any("raylet" in command for command in guests_processes.values())
            assert any("raylet" in command for command in owners_processes.values())
            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                plans = list(threads.map(plan_a_step, (guest.address, owner.address)))
            assert plans[0] == plans[1]

            guest.signal(signal.SIGKILL)
            assert solvers_left(cluster) == []
            assert cluster.is_up()
            assert plan_a_step(owner.address) == plans[0]

            directories = ray_directories(owners_processes)
            assert len(directories) == 1
            owner.close()
            assert survivors(owners_processes) == {}
            assert not any(directory.exists() for directory in directories)
            assert cluster.is_up()
        finally:
            guest.close()
            owner.kill()
