"""A network between executor and planner that swallows everything for a while: the run waits, says so, and goes on."""

import logging
import threading
import time

import pytest
import torch

from infinipipe_executor import call_waiting, planner_calls
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.errors import PlannerUnavailableError
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planning import Planning
from infinipipe_planner.config import ServerConfig
from support_service import CONTEXT_TOKENS, PROFILE, background_service
from support_service.proxy import CutProxy

CUT_S = 8.0
PING_S = 2.0
"""Instead of the 10 s of a real run, so that a cut of seconds is noticed."""


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    ping_ms = int(PING_S * 1000)
    pings = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    options = tuple((name, ping_ms if name in pings else value) for name, value in planner_calls.CHANNEL_OPTIONS)
    monkeypatch.setattr(planner_calls, "CHANNEL_OPTIONS", options)
    monkeypatch.setattr(call_waiting, "PROGRESS_INTERVAL_S", 2.0)


def batch_of(*lengths_tokens: int) -> Batch:
    return Batch(tuple(make_sequence(torch.arange(length)) for length in lengths_tokens))


def test_a_run_waits_out_a_network_that_swallows_everything_and_says_for_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="infinipipe_executor")
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, min_ping_interval_s=1.0)
    batches = [batch_of(5, 7), batch_of(6, 8)]
    with (
        background_service(config, is_held=True) as service,
        CutProxy(service.address) as proxy,
        PlanClient(proxy.address, call_timeout_s=60) as client,
    ):
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        planning = Planning(client, 0, PROFILE, wait_timeout_s=60.0)
        client.submit_batch(0, batches[0].lengths_tokens, batches[0].target_token_count)  # is over before the cut

        proxy.cut()
        service.call(service.solver.let_go)  # the plan is ready behind the cut
        healing = threading.Timer(CUT_S, proxy.heal)
        healing.start()
        started_s = time.monotonic()
        plan, waited_s = planning.fetch(0, batches[0])
        took_s = time.monotonic() - started_s
        healing.join()

        planning.submit(1, batches[1])
        later, _ = planning.fetch(1, batches[1])
        solved_steps = service.solver.solved_steps

    assert CUT_S <= took_s + 0.2 < CUT_S + 10
    assert waited_s == pytest.approx(took_s, abs=0.5)
    assert (plan.step, later.step) == (0, 1)
    assert solved_steps == [0, 1], "no step is planned twice"
    assert proxy.attempts_while_cut > 0, "the silent connection was given up before the network was back"
    told = [record.message for record in caplog.records if "waits" in record.message]
    assert told[:2] == ["rank 0 waits 2 s for the plan of step 0", "rank 0 waits 4 s for the plan of step 0"]


def test_a_network_that_stays_cut_ends_the_wait_at_its_limit() -> None:
    config = ServerConfig(listen="127.0.0.1:0", grace_s=0.5, min_ping_interval_s=1.0)
    with (
        background_service(config) as service,
        CutProxy(service.address) as proxy,
        PlanClient(proxy.address, call_timeout_s=10) as client,
    ):
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
        proxy.cut()
        started_s = time.monotonic()

        with pytest.raises(PlannerUnavailableError, match=rf"planner at {proxy.address}.* 2 s"):
            client.fetch_plan(0, timeout_s=2.0)

        assert time.monotonic() - started_s < 2.0 + 5.0


def test_a_host_name_that_is_not_known_is_said_at_once_and_waited_for_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="infinipipe_executor")
    started_s = time.monotonic()
    with (
        PlanClient("no-such-host.invalid:50051", call_timeout_s=3.0) as client,
        pytest.raises(PlannerUnavailableError, match="no planner at no-such-host.invalid:50051 after 3 s"),
    ):
        client.create_job("a", PROFILE, context_tokens=CONTEXT_TOKENS)
    took_s = time.monotonic() - started_s

    (record,) = [record for record in caplog.records if "name of the planner's host" in record.message]
    assert "no-such-host.invalid, is not known here" in record.message
    assert "trying on for up to 3 s" in record.message
    assert took_s >= 2.5
    assert record.relativeCreated < logging.makeLogRecord({}).relativeCreated - 1e3 * (took_s - 2.0)
