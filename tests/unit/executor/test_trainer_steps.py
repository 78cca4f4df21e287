"""A training step on one rank: ahead of time with the planner, still without targets, honest in what it reports."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinipipe_executor.agreement import difference
from support_e2e.runs import TINY
from support_e2e.trainer_ranks import (
    disagree,
    train,
    train_last_of_epoch,
    train_until_it_diverges,
    train_until_told_to_end,
    train_without_targets,
)
from support_executor.corpora import write_jsonl, write_tokenizer
from support_executor.groups import GroupPool
from support_executor.reference import reference_step

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def groups() -> Iterator[GroupPool]:
    pool = GroupPool()
    yield pool
    pool.close()


def test_the_planner_has_the_next_batch_before_a_step_runs(groups: GroupPool, tmp_path: Path) -> None:
    ((asked, _, _),) = groups.run(1, train, tmp_path)

    for step in range(4):
        assert asked.index(("submit", step)) < asked.index(("run", max(0, step - 1)))
    assert [call for call in asked if call[0] != "submit"] == [
        (what, step) for step in range(4) for what in ("fetch", "run", "report")
    ]


def test_every_step_prints_one_line_and_reports_what_the_line_says(groups: GroupPool, tmp_path: Path) -> None:
    ((_, reports, lines),) = groups.run(1, train, tmp_path)

    assert [line.split("  ")[0] for line in lines] == ["step 0 of 4", "step 1 of 4", "step 2 of 4", "step 3 of 4"]
    for line, report in zip(lines, reports, strict=True):
        assert f"  loss {report.loss:.4f}  " in line
        assert report.actions[0].start_s == 0.0
        assert report.first_start_s is not None
        assert report.first_start_s > 0
        assert f"  measured {report.first_start_s + report.step_s:.2f} s  " in line  # since the common start
        assert report.actions[-1].end_s == report.step_s
        assert sum(action.end_s - action.start_s for action in report.actions) == pytest.approx(report.busy_s)
        assert report.peak_bytes > 0


def test_the_learning_rates_of_a_run_are_known_up_front_however_its_batches_are_packed(
    groups: GroupPool, tmp_path: Path
) -> None:
    changes = {"optimizer": {"schedule": "cosine", "warmup_steps": 1}}
    cuts: set[str] = set()
    for policy in ("search", "no-balance"):
        ((_, _, lines),) = groups.run(1, train, tmp_path / policy, changes, policy)

        told = [re.findall(r"^step (\d) of 4 .* learning rate (\S+) .* chunks (\S+) ", line)[0] for line in lines]
        # Half a cosine from 0.01 at step 1 down to 0 behind step 3.
        assert [rate for _, rate, _ in told] == ["1.00e-02", "1.00e-02", "7.50e-03", "2.50e-03"]
        cuts.add(" ".join(cut for *_, cut in told))
    assert len(cuts) == 2


def test_a_run_without_checkpoints_that_is_told_to_end_says_that_nothing_was_saved(
    groups: GroupPool, tmp_path: Path
) -> None:
    ((is_done, asked, log),) = groups.run(1, train_until_told_to_end, tmp_path)

    assert not is_done
    assert ("fetch", 1) in asked
    assert ("fetch", 2) not in asked
    assert log[-1] == ("ended by SIGTERM: 2 of 4 steps are done; nothing was saved: there is no section [checkpoint]")


def test_ranks_run_no_step_once_one_of_them_was_told_to_end(groups: GroupPool) -> None:
    # Rank 2 was told to end and has no plan.
    assert groups.run(4, disagree, "aa0a", "cccc", 2) == ["told to end"] * 4


def test_a_batch_without_any_target_changes_nothing_but_the_step(groups: GroupPool, tmp_path: Path) -> None:
    ((is_same, is_same_after_next, log, asked),) = groups.run(1, train_without_targets, tmp_path)

    assert is_same
    assert not is_same_after_next
    assert [message for level, message in log if level == "WARNING"] == [
        "step 0 skipped: none of its 41 tokens in 2 sequences has a target; the parameters stay as they are"
    ]
    assert [message.split("  ")[0] for level, message in log if level == "INFO" and "loss" in message] == [
        "step 1 of 4"
    ]
    assert asked == [("submit", 0), ("fetch", 0), ("submit", 1), ("fetch", 1), ("report", 1)]


def test_the_last_batch_of_an_epoch_of_prompts_is_planned_and_trained_like_any_other(
    groups: GroupPool, tmp_path: Path
) -> None:
    rows = [{"prompt": "why " * (index + 1), "completion": "because " * (10 - index)} for index in range(10)]
    write_jsonl(tmp_path / "prompts.jsonl", [*rows, {"prompt": "a whole context " * 20, "completion": "cut off"}])
    write_tokenizer(tmp_path / "tokenizer")
    data = {"corpus": "prompts.jsonl", "tokenizer": "tokenizer/tokenizer.json"}

    ((batches, loss),) = groups.run(1, train_last_of_epoch, tmp_path, data)

    assert [len(batch.sequences) for batch in batches] == [6, 4]  # the one without a target is in none
    target_count = sum(len(row["completion"]) + 1 for row in rows)  # bytes, and the end token
    assert sum(batch.target_token_count for batch in batches) == target_count
    assert loss == pytest.approx(reference_step(TINY, 3, batches[1]).loss, rel=1e-5)


@pytest.mark.parametrize(
    ("where", "values"),
    [("loss", r"loss nan, gradient norm nan"), ("gradients", r"loss \d+\.\d+, gradient norm inf")],
)
def test_a_step_that_is_not_finite_ends_the_run_before_the_update(
    groups: GroupPool, tmp_path: Path, where: str, values: str
) -> None:
    ((error, is_same, updated_count),) = groups.run(1, train_until_it_diverges, tmp_path, where)

    assert re.match(rf"DivergedError: step 0: training has diverged: {values}; no update was made in this step", error)
    assert "[optimizer] learning_rate" in error
    assert is_same
    assert updated_count == 0


@pytest.mark.parametrize(
    ("plans", "batches", "expected"),
    [
        ("aaaa", "cccc", "agreed"),
        ("aaba", "cccc", "PlanError: step 7: the ranks hold different plans: ranks 0, 1, 3 a, rank 2 b"),
        ("aaaa", "cddc", "DataError: step 7: the ranks read different batches: ranks 0, 3 c, ranks 1, 2 d"),
        ("abab", "cdcd", "DataError: step 7: the ranks read different batches: ranks 0, 2 c, ranks 1, 3 d"),
    ],
)
def test_all_ranks_raise_the_same_error_when_one_holds_another_plan_or_batch(
    groups: GroupPool, plans: str, batches: str, expected: str
) -> None:
    errors = groups.run(4, disagree, plans, batches)

    assert [re.sub(r"\b([a-f])\1{11}\b", r"\1", error) for error in errors] == [expected] * 4


def test_equal_digests_are_no_difference() -> None:
    assert difference([b"a", b"a"]) == ""
