"""Memory over the time of a step, as digits."""

import pytest

from infinipipe_contract.plan import ActionKind, ChunkId
from infinipipe_contract.simulate import Span, StageTimeline, simulate
from infinipipe_planner.memory_curves import largest_in_slots, memory_lines
from support_contract import two_stage_plan


def stage(*ends_and_bytes: tuple[float, float]) -> StageTimeline:
    spans = tuple(
        Span(ActionKind.FORWARD, ChunkId(0, i), 0.0, end_s, 0.0) for i, (end_s, _) in enumerate(ends_and_bytes)
    )
    used = tuple(used_bytes for _, used_bytes in ends_and_bytes)
    return StageTimeline(0, 0, spans, used, max(used, default=1.0), 0)


def test_a_slice_of_time_shows_the_most_that_is_in_use_in_it() -> None:
    # In use: 1 until 2 s, 5 until 2.5 s, 3 from then on.
    assert largest_in_slots(stage((2.0, 5.0), (2.5, 3.0)), 1.0, 4.0, 4) == [1.0, 1.0, 5.0, 3.0]


def test_a_peak_that_is_over_at_once_is_seen() -> None:
    assert max(largest_in_slots(stage((1.0, 9.0), (1.0001, 2.0)), 1.0, 100.0, 10)) == 9.0


@pytest.mark.parametrize("makespan_s", [0.0, 4.0])
def test_a_stage_that_does_nothing_holds_its_model_states(makespan_s: float) -> None:
    assert largest_in_slots(stage(), 7.0, makespan_s, 3) == [7.0] * 3


def test_every_stage_has_a_line_of_eighty_columns_at_most_with_its_peak() -> None:
    profile, _, plan = two_stage_plan()
    planned = simulate(plan.pipelines, profile)

    lines = memory_lines(planned, profile, width=80)

    assert [line.split()[:2] for line in lines[2:]] == [["stage", "0"], ["stage", "1"]]
    assert max(map(len, lines)) <= 80
    for line, one in zip(lines[2:], planned.stages, strict=True):
        digits, share = line.split()[2], one.peak_bytes / profile.usable_memory_bytes
        assert max(digits) == str(int(share * 10))
        assert line.endswith(f"{share:.0%}")
