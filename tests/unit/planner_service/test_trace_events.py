"""Steps as trace events, and the clock that ranks of different stages share."""

import dataclasses
import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from infinipipe_contract.plan import ActionKind, ChunkId
from infinipipe_planner.measured import MeasuredRank, MeasuredSpan, measured_bubble_ratio, on_one_clock
from infinipipe_planner.trace import MEASURED_PID, PLANNED_PID, build_trace
from support_views import rank_of, step_view, two_stage


def forward(chunk_index: int, start_s: float, end_s: float) -> MeasuredSpan:
    return MeasuredSpan(ActionKind.FORWARD, ChunkId(0, chunk_index), start_s, end_s)


def rank(number: int, stage_index: int, *spans: MeasuredSpan) -> MeasuredRank:
    return MeasuredRank(number, stage_index, spans[-1].end_s, 1.0, 0.0, 0.0, None, spans)


def starts(ranks: tuple[MeasuredRank, ...]) -> list[list[float]]:
    return [[span.start_s for span in rank.spans] for rank in ranks]


def trace_of_a_measured_step() -> list[dict[str, Any]]:
    view = step_view(step=7, slowdown=1.25)
    written = json.dumps(build_trace(view.plan, view.planned, view.ranks), allow_nan=False)
    events: list[dict[str, Any]] = json.loads(written)["traceEvents"]
    return events


def actions(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    return threads


def test_a_stage_starts_when_the_one_before_it_has_ended_its_first_pass() -> None:
    _, planned = two_stage()
    first = rank(0, 0, forward(0, 0.0, 2.0), forward(1, 2.0, 3.0))
    second = rank(1, 1, forward(0, 0.0, 1.0), forward(1, 1.5, 2.5))

    assert starts(on_one_clock([second, first], planned)) == [[0.0, 2.0], [2.0, 3.5]]


def test_no_forward_pass_starts_before_its_input_was_there() -> None:
    _, planned = two_stage()
    first = rank(0, 0, forward(0, 0.0, 1.0), forward(1, 1.0, 5.0))
    second = rank(1, 1, forward(0, 0.0, 1.0), forward(1, 1.0, 2.0))

    assert starts(on_one_clock([first, second], planned)) == [[0.0, 1.0], [4.0, 5.0]]


def test_ranks_of_neighbouring_stages_pair_up_in_their_order() -> None:
    _, planned = two_stage()
    ranks = [
        rank(0, 0, forward(0, 0.0, 1.0)),
        rank(1, 0, forward(0, 0.0, 2.0)),
        rank(2, 1, forward(0, 0.0, 1.0)),
        rank(3, 1, forward(0, 0.0, 1.0)),
    ]

    assert starts(on_one_clock(ranks, planned)) == [[0.0], [0.0], [1.0], [2.0]]


def test_without_a_report_of_the_stage_in_front_a_rank_starts_when_planned() -> None:
    _, planned = two_stage()

    (moved,) = on_one_clock([rank_of(planned, 1, 3)], planned)

    assert moved.spans[0].start_s == planned.stages[1].spans[0].start_s > 0


def test_the_measured_bubble_is_the_idle_share_of_the_longest_step() -> None:
    ranks = [MeasuredRank(i, 0, step_s, 3.0, 0.0, 0.0, None, ()) for i, step_s in enumerate((4.0, 6.0))]

    assert measured_bubble_ratio(ranks) == pytest.approx(0.5)
    assert measured_bubble_ratio([]) is None


def test_planned_stages_and_measured_ranks_are_threads_of_two_processes() -> None:
    events = trace_of_a_measured_step()

    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {PLANNED_PID: "planned", MEASURED_PID: "measured"}
    assert names == {
        (PLANNED_PID, 0): "stage 0",
        (PLANNED_PID, 1): "stage 1",
        (MEASURED_PID, 0): "rank 0 (stage 0)",
        (MEASURED_PID, 1): "rank 1 (stage 0)",
        (MEASURED_PID, 2): "rank 2 (stage 1)",
        (MEASURED_PID, 3): "rank 3 (stage 1)",
    }


def test_actions_are_named_as_in_the_grid_and_say_what_their_chunk_is() -> None:
    threads = actions(trace_of_a_measured_step())

    assert [e["name"] for e in threads[PLANNED_PID, 0]] == ["F0", "F1", "F2", "B1r1", "B0", "B2"]
    assert [e["name"] for e in threads[MEASURED_PID, 3]] == ["F0", "F1", "B1r2", "F2", "B0", "B2"]
    hybrid = threads[PLANNED_PID, 1][1]["args"]
    assert hybrid == {
        **{"pipeline": 0, "chunk": 1, "kind": "hybrid", "tokens": 7, "context_tokens": 8},
        **{"slices": 2, "recompute_layers": 2},
    }


def test_no_two_actions_of_a_thread_overlap() -> None:
    for of_thread in actions(trace_of_a_measured_step()).values():
        for before, after in itertools.pairwise(of_thread):
            assert before["dur"] > 0
            # Nanoseconds: the sum of two decimal fractions is not exact.
            assert round((before["ts"] + before["dur"]) * 1e3) <= round(after["ts"] * 1e3)


def test_events_come_in_the_order_of_time_behind_the_metadata() -> None:
    events = trace_of_a_measured_step()

    phases = [event["ph"] for event in events]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert phases.index("X") == phases.count("M")
    assert times == sorted(times)


def test_the_first_measured_action_starts_with_the_first_planned_one() -> None:
    threads = actions(trace_of_a_measured_step())

    assert threads[PLANNED_PID, 0][0]["ts"] == threads[MEASURED_PID, 0][0]["ts"] == 0


def test_every_arrow_leaves_inside_an_action_and_arrives_where_the_receiver_starts() -> None:
    events = trace_of_a_measured_step()
    threads = actions(events)

    arrows: defaultdict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
    assert len(arrows) == 6  # three chunks, one edge, both directions
    for arrow in arrows.values():
        sent, received = arrow["s"], arrow["f"]
        assert any(e["ts"] <= sent["ts"] < e["ts"] + e["dur"] for e in threads[sent["pid"], sent["tid"]])
        assert received["ts"] in {e["ts"] for e in threads[received["pid"], received["tid"]]}
        assert received["ts"] > sent["ts"]


def test_memory_is_a_counter_a_stage_that_peaks_where_the_replay_does() -> None:
    view = step_view()
    events = trace_of_a_measured_step()

    for stage_index, stage in enumerate(view.planned.stages):
        values = [e["args"]["bytes"] for e in events if e["name"] == f"memory of stage {stage_index}"]
        assert max(values) == stage.peak_bytes


def test_a_step_that_was_not_measured_has_no_measured_process() -> None:
    plan, planned = two_stage()

    events = build_trace(plan, planned, ())["traceEvents"]

    assert {event["pid"] for event in events} == {PLANNED_PID}


def test_ranks_that_report_their_start_are_put_beside_each_other_by_it() -> None:
    _, planned = two_stage()
    first = dataclasses.replace(rank(0, 0, forward(0, 0.0, 1.0), forward(1, 1.0, 2.0)), first_start_s=0.25)
    second = dataclasses.replace(rank(1, 1, forward(0, 0.0, 1.0), forward(1, 1.5, 2.5)), first_start_s=1.5)

    # By messages alone rank 1 would have started at 1.0.
    assert starts(on_one_clock([second, first], planned)) == [[0.0, 1.0], [1.25, 2.75]]


def test_one_rank_without_a_start_leaves_the_clock_to_messages() -> None:
    _, planned = two_stage()
    first = dataclasses.replace(rank(0, 0, forward(0, 0.0, 1.0)), first_start_s=0.25)

    assert starts(on_one_clock([first, rank(1, 1, forward(0, 0.0, 1.0))], planned)) == [[0.0], [1.0]]
