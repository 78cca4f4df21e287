"""Warnings of a rank say what they are about."""

import logging

import pytest

from infinipipe_executor import log_prefix


def test_a_warning_names_job_generation_step_and_rank_and_progress_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_prefix, "_known", {})
    monkeypatch.setenv("RANK", "3")
    formatter = log_prefix.PrefixFormatter()

    def write(level: int) -> str:
        return formatter.format(logging.LogRecord("x", level, "x.py", 1, "nothing reported: %s", ("away",), None))

    assert write(logging.WARNING) == "rank 3: nothing reported: away"
    log_prefix.note(job="a")
    log_prefix.note(generation=2)
    log_prefix.note(step=6)
    log_prefix.note(step=7)
    assert write(logging.WARNING) == "job a, generation 2, step 7, rank 3: nothing reported: away"
    assert write(logging.INFO) == "nothing reported: away"
