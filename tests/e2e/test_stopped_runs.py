"""Runs that are told to end, or whose ranks are killed: nothing is lost, and the exit code says what happened."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from infinipipe_contract.plan import ExecutionPlan
from support_e2e.live_ranks import live_ranks
from support_e2e.planner import ThreadSolver, planner_thread
from support_e2e.runs import processes_with, torchrun, write_run

pytestmark = pytest.mark.e2e

STOPPED = 75


def run_config(folder: Path, **changes: dict[str, object]) -> Path:
    sections: dict[str, dict[str, object]] = {
        "job": {"steps": 1000},
        "checkpoint": {"folder": "checkpoints", "every_steps": 2},
        "metrics": {"jsonl": "metrics.jsonl"},
        **changes,
    }
    return write_run(folder, pp_size=2, sp_size=1, changes=sections)


def names(config: Path) -> list[str]:
    return sorted(path.name for path in (config.parent / "checkpoints").iterdir())


def trained(config: Path) -> dict[int, float]:
    """Loss by step, from the file of metrics; a step that was trained twice counts as it was trained last."""
    lines = (config.parent / "metrics.jsonl").read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def test_a_signal_to_one_rank_ends_all_with_what_they_trained_saved_and_the_next_start_goes_on(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    # Once two steps of the second start are done, no plan comes for a minute.
    slow_from = [10**6]
    with planner_thread(ThreadSolver(delay_s=lambda step: 60.0 if step >= slow_from[0] else 0.0)) as planner:
        # In a step, while the checkpoint of two steps is being written.
        with live_ranks(config, planner, ranks=2, module=("support_e2e.faulty_worker", "slow-disk")) as run:
            run.wait_for("writes a checkpoint")
            run.tell(1)
            assert run.end() == [STOPPED, STOPPED], run.output
        (done,) = re.findall(
            r"^ended by SIGTERM: (\d+) of 1000 steps are done; checkpoint step-\1 holds them$", run.output, re.M
        )
        first = int(done)
        assert f"step-{first}" in names(config)
        assert sorted(trained(config)) == list(range(first))

        # While both ranks wait for a plan.
        slow_from[0] = first + 2
        with live_ranks(config, planner, ranks=2) as run:
            run.wait_for(f"training goes on from checkpoint {tmp_path}/checkpoints/step-{first}: {first} of 1000")
            run.wait_for(f"rank 0 waits 5 s for the plan of step {first + 2}")
            told_s = time.monotonic()
            run.tell(1)
            assert run.end() == [STOPPED, STOPPED], run.output
            assert time.monotonic() - told_s < 20.0
        assert f"ended by SIGTERM: {first + 2} of 1000 steps are done; checkpoint step-{first + 2} holds" in run.output
        assert sorted(trained(config)) == list(range(first + 2))
    assert "error" not in run.output


def test_a_signal_before_the_first_step_ends_a_rank_at_once(tmp_path: Path) -> None:
    config = run_config(tmp_path)

    with live_ranks(config, "127.0.0.1:9", ranks=2, module=("support_e2e.faulty_worker", "slow")) as run:
        run.wait_for("corpus: ")
        run.wait_for("reads slowly")
        run.tell(0, 1)
        assert run.end(10.0) == [STOPPED, STOPPED], run.output

    assert run.output.endswith("ended by SIGTERM before the first step: there was nothing to save\n")


def test_a_second_signal_ends_the_ranks_at_once(tmp_path: Path) -> None:
    config = run_config(tmp_path)

    with planner_thread(ThreadSolver()) as planner:  # noqa: SIM117
        with live_ranks(config, planner, ranks=2, module=("support_e2e.faulty_worker", "very-slow-disk")) as run:
            run.wait_for("writes a checkpoint")
            run.tell(0, 1)
            run.tell(0, 1)  # the same signal, by another way
            time.sleep(2.0)
            assert [process.poll() for process in run.processes] == [None, None]
            run.tell(0, 1)
            assert run.end(10.0) == [STOPPED, STOPPED], run.output

    assert "ended at once by a second SIGTERM: what was not saved yet is lost" in run.output
    assert names(config) == ["step-2.partial"]


def test_a_killed_rank_costs_the_steps_behind_the_last_checkpoint_under_max_restarts(tmp_path: Path) -> None:
    config = run_config(tmp_path, job={"steps": 8}, checkpoint={"folder": "checkpoints", "every_steps": 4})
    metrics = tmp_path / "metrics.jsonl"
    generations: set[int] = set()

    def note(plan: ExecutionPlan) -> ExecutionPlan:
        generations.add(plan.generation)
        return plan

    def kill_rank_1() -> None:
        """Wait until two steps behind the first checkpoint are done, then kill."""
        while not ((tmp_path / "checkpoints" / "step-4").exists() and '"step": 5' in metrics.read_text()):
            time.sleep(0.01)
        for pid in processes_with(str(config)):
            if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)

    with planner_thread(ThreadSolver(note)) as planner:
        killer = threading.Thread(target=kill_rank_1, daemon=True)
        killer.start()
        ended = torchrun(config, planner, ranks=2, options=("--max-restarts", "1"), timeout_s=110.0)

    assert ended.code == 0, ended.output
    assert f"training goes on from checkpoint {tmp_path}/checkpoints/step-4: 4 of 8 steps are done" in ended.output
    assert generations == {1, 2}
    losses: dict[int, set[float]] = {}
    for line in metrics.read_text().splitlines():
        row = json.loads(line)
        losses.setdefault(row["step"], set()).add(row["loss"])
    # Steps 4 and 5 were trained twice, bit by bit alike.
    assert sorted(losses) == list(range(8))
    assert all(len(of_step) == 1 for of_step in losses.values())
    assert len(metrics.read_text().splitlines()) >= 10
