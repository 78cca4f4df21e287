"""A planner as its operator watches it: health, metrics, log, while it is a process of its own."""

import json
import socket
import subprocess
import time
import urllib.request
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from support_service import job_spec, plan_request, submission
from support_service.process import COMMAND, ServiceProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def ask_health(address: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, "health", "--planner", address], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def scrape(address: str) -> dict[tuple[Any, ...], float]:
    """Read all samples by name and labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_metrics_and_log_tell_of_a_planner_that_plans() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics_address = f"127.0.0.1:{probe.getsockname()[1]}"
    service = ServiceProcess("--workers", "0", "--metrics-listen", metrics_address, "--log-format", "json")
    try:
        service.wait_ready()
        assert ask_health(service.address) == (0, "SERVING")
        with grpc.insecure_channel(service.address) as channel:
            stub: Any = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            stub.CreateJob(pb.CreateJobRequest(job="a", spec=job_spec()), timeout=60)
            stub.SubmitBatch(submission("a", 3), timeout=60)
            stub.GetPlan(plan_request("a", 3), timeout=60)
            with pytest.raises(grpc.RpcError):
                stub.GetJob(pb.GetJobRequest(job="b"), timeout=60)

        refused_calls = ("infinipipe_planner_rpcs_total", ("code", "NOT_FOUND"), ("method", "GetJob"))
        samples = scrape(metrics_address)
        deadline_s = time.monotonic() + 30
        while refused_calls not in samples and time.monotonic() < deadline_s:  # counted behind the answer
            time.sleep(0.05)
            samples = scrape(metrics_address)
        assert samples["infinipipe_planner_solve_seconds_count",] == 1
        assert samples["infinipipe_planner_job_lead_steps", ("job_name", "a"), ("owner", "")] == 1
        assert samples[refused_calls] == 1
        address = service.address
    finally:
        log = service.close()
    code, sentence = ask_health(address)
    assert (code, sentence.partition(":")[0]) == (1, "error")
    assert f"no planner at {address}" in sentence

    records = [json.loads(line) for line in log.splitlines()]
    assert f"metrics are at http://{metrics_address}/metrics" in [record["message"] for record in records]
    (planned,) = [record for record in records if record["message"].startswith("planned in ")]
    assert (planned["job"], planned["generation"], planned["step"], planned["level"]) == ("a", 1, 3, "INFO")


def test_a_taken_metrics_address_ends_the_start_and_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--workers", "0", "--metrics-listen", address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: cannot listen on {address}: another process listens there"
