"""Traces against the format of Chrome trace events as Perfetto reads it: strictly, key by key."""

import dataclasses
import json
from collections import defaultdict
from typing import Any

import pytest

from infinipipe_contract.simulate import simulate
from infinipipe_planner.measured import on_one_clock
from infinipipe_planner.trace import build_trace
from support_contract import replica_plan, two_stage_plan
from support_views import rank_of

COMMON = {"name": str, "ph": str, "pid": int}
KEYS: dict[str, dict[str, Any]] = {
    "X": {"cat": str, "ts": (int, float), "dur": (int, float), "tid": int, "args": dict},
    "C": {"ts": (int, float), "args": dict},
    "s": {"cat": str, "ts": (int, float), "tid": int, "id": int},
    "f": {"cat": str, "ts": (int, float), "tid": int, "id": int, "bp": str},
    "M": {"tid": int, "args": dict},
}
METADATA: dict[str, tuple[str, type]] = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


@pytest.fixture(params=["one pipeline", "replicas", "by messages"])
def trace(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A measured step as it is written, with ranks on the exact clock and without."""
    profile, _, plan = replica_plan() if request.param == "replicas" else two_stage_plan()
    planned = simulate(plan.pipelines, profile)
    ranks = []
    for number, stage in enumerate(planned.stages):
        if not stage.spans:
            continue  # a replica without a chunk
        rank = dataclasses.replace(rank_of(planned, number, number, slowdown=1.1), stage_index=stage.stage_index)
        start_s = None if request.param == "by messages" else 0.125 + stage.spans[0].start_s
        ranks.append(dataclasses.replace(rank, replica_index=stage.replica_index, first_start_s=start_s))
    written = json.dumps(build_trace(plan, planned, on_one_clock(ranks, planned)), allow_nan=False)
    loaded: dict[str, Any] = json.loads(written)
    return loaded


def test_every_event_has_the_keys_of_its_phase_with_the_right_types_and_no_others(trace: dict[str, Any]) -> None:
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        expected = COMMON | KEYS[event["ph"]]
        assert event.keys() == expected.keys(), event
        for key, kind in expected.items():
            assert isinstance(event[key], kind) and not isinstance(event[key], bool), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "M":
            argument, kind = METADATA[event["name"]]
            assert event["args"].keys() == {argument}
            assert isinstance(event["args"][argument], kind)
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_every_track_is_named_before_its_first_event_and_its_time_never_runs_back(trace: dict[str, Any]) -> None:
    named: set[tuple[int, int]] = set()
    last_ts: dict[tuple[int, Any], float] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            continue
        track = (event["pid"], event["tid"] if "tid" in event else event["name"])
        assert "tid" not in event or track in named
        assert event["ts"] >= last_ts.get(track, 0.0)
        last_ts[track] = event["ts"]


def test_no_two_slices_of_a_lane_overlap(trace: dict[str, Any]) -> None:
    ends_ns: dict[tuple[int, int], int] = {}
    count = 0
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lane = (event["pid"], event["tid"])
            assert round(event["ts"] * 1e3) >= ends_ns.get(lane, 0)
            ends_ns[lane] = round((event["ts"] + event["dur"]) * 1e3)
            count += 1
    assert count >= 12


def test_every_flow_starts_once_ends_once_and_later(trace: dict[str, Any]) -> None:
    flows: defaultdict[int, list[tuple[str, float, str]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            flows[event["id"]].append((event["ph"], event["ts"], event["name"]))
    assert flows
    for first, second in (sorted(flow, key=lambda one: one[0], reverse=True) for flow in flows.values()):
        assert (first[0], second[0]) == ("s", "f")
        assert first[1] < second[1]
        assert first[2] == second[2] in ("activation", "gradient")
