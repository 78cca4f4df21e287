"""The timeline of a plan of four stages and six chunks: a golden picture, reviewed like code, and what it must hold."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from infinipipe_contract.simulate import simulate
from infinipipe_contract.validate import validate
from infinipipe_planner.measured import on_one_clock
from infinipipe_planner.report_page.timeline import timeline
from infinipipe_planner.report_page.view import StepView
from infinipipe_planner.trace import build_trace
from support_contract import four_stage_plan
from support_views import rank_of

GOLDEN = Path(__file__).parents[2] / "golden" / "four_by_six_timeline.html"
STAGE_WORDS = [
    "F0 F1 F2 F3 F4 F5 B2 B1r1 B0r1 B3 B4 B5",
    "F0 F1 F2 F3 F4 B2 F5 B1 B0r1 B3 B4 B5",
    "F0 F1 F2 F3 B2 F4 B1 F5 B0 B3 B4 B5",
    "F0 F1 F2 B2 F3 B1 F4 B0 F5 B3 B4 B5",
]


@pytest.fixture(scope="module")
def step() -> StepView:
    """The plan, and four ranks that ran it a tenth slower."""
    profile, lengths, plan = four_stage_plan()
    validate(plan, lengths, profile)
    planned = simulate(plan.pipelines, profile)
    ranks = [rank_of(planned, stage, stage, slowdown=1.1) for stage in range(4)]
    return StepView(plan, planned, on_one_clock(ranks, planned))


def lanes_of(picture: str) -> list[str]:
    """The lanes with actions, planned ones first."""
    return [lane for lane in picture.split('<div class="lane">')[1:] if "<title>" in lane]


def test_the_picture_is_the_golden_one(step: StepView) -> None:
    assert str(timeline(step)).replace("><", ">\n<") + "\n" == GOLDEN.read_text()


def test_every_lane_of_the_picture_has_the_actions_of_its_stage_in_order_planned_and_measured(step: StepView) -> None:
    lanes = lanes_of(str(timeline(step)))

    drawn = [" ".join(re.findall(r"<title>(\w+):", lane)) for lane in lanes]
    assert drawn == STAGE_WORDS * 2


def test_no_two_actions_of_a_lane_overlap_in_the_picture_or_in_the_trace(step: StepView) -> None:
    for lane in lanes_of(str(timeline(step))):
        rects = re.findall(r"<rect ([^>]*)><title>", lane)
        places = [
            tuple(
                float(found[1])
                for found in [re.search(rf'\b{name}="([\d.]+)%"', rect) for name in ("x", "width")]
                if found
            )
            for rect in rects
        ]
        assert len(places) == 12
        for (x, width), (next_x, _) in pairwise(places):
            assert x + width <= next_x + 0.01  # positions are rounded

    events = [event for event in build_trace(step.plan, step.planned, step.ranks)["traceEvents"] if event["ph"] == "X"]
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(spans))
