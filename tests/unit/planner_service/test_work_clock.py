"""How long solver processes have worked on a batch."""

import time

import pytest

from infinipipe_planner.work_clock import WorkClock


def test_the_clock_runs_while_any_process_works_and_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    clock = WorkClock()
    passed_s = []

    #      begin begin end end (nobody) begin
    for step in ("begin", "begin", "end", "end", "nobody", "begin"):
        if step != "nobody":
            getattr(clock, step)()
        passed_s.append(clock.passed_s)
        now_s += 1.0

    assert passed_s == [0.0, 1.0, 2.0, 3.0, 3.0, 3.0]
    assert clock.passed_s == 4.0
