"""Faults of a run: one clear message, the cause last, everybody gone, a non-zero exit code."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infinipipe_contract.plan import ExecutionPlan, Pipeline, plan_digest
from support_e2e.planner import ThreadSolver, planner_thread
from support_e2e.runs import Ended, torchrun, write_run

pytestmark = pytest.mark.e2e

# From a fault to the end of the whole run.
END_S = 15.0

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


def alone(config: Path, planner: str = NOBODY, world_size: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a single worker without torchrun."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")}
    return subprocess.run(
        [sys.executable, "-m", "infinipipe_executor", "--config", str(config), "--planner", planner],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment | {"WORLD_SIZE": str(world_size)},
    )


def assert_one_clear_end(ended: Ended, *words: str) -> None:
    """The run failed, said why in one line, and torchrun's last word is the same cause."""
    assert ended.code != 0
    errors = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.output
    for word in words:
        assert word in errors[0], ended.output
    assert errors[0] in last_words(ended)
    assert "Traceback" not in ended.output[: ended.output.index(errors[0])]


def last_words(ended: Ended) -> str:
    """Return what torchrun prints last: the cause that it found first."""
    _, marker, cause = ended.output.rpartition("Root Cause (first observed failure):")
    assert marker, ended.output
    return cause


def test_an_unknown_key_ends_the_run_before_anything_starts(tmp_path: Path) -> None:
    config = write_run(tmp_path, changes={"optimizer": {"learning_rat": 1e-3}})

    ended = alone(config)

    assert ended.returncode == 2
    assert ended.stderr == (f"error: {config}: [optimizer] has no key 'learning_rat'; did you mean 'learning_rate'?\n")
    assert ended.stdout == ""


def test_a_number_of_ranks_that_does_not_fit_the_configuration_is_named(tmp_path: Path) -> None:
    ended = alone(write_run(tmp_path))

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: 1 ranks were started, [cluster] dp_size 1 x pp_size 2 x sp_size 2 needs 4")


@pytest.mark.parametrize(
    ("pp_size", "sp_size", "message"),
    [
        (1, 4, "6 query heads cannot be divided among sp_size 4 ranks; sp_size may be 1, 2, 3, 6"),
        (5, 1, "4 layers cannot be divided among pp_size 5 stages; pp_size may be 1 to 4"),
    ],
)
def test_a_layout_that_the_model_does_not_allow_lists_those_that_it_does(
    tmp_path: Path, pp_size: int, sp_size: int, message: str
) -> None:
    changes = {"model": {"heads": 6, "kv_heads": 2}, "cluster": {"pp_size": pp_size, "sp_size": sp_size}}

    # No torchrun and no other rank: it is said before anybody waits for anybody.
    ended = alone(write_run(tmp_path, changes=changes), world_size=pp_size * sp_size)

    assert ended.returncode == 2
    assert ended.stderr == f"error: {message}\n"


def test_key_heads_that_do_not_divide_the_heads_are_refused(tmp_path: Path) -> None:
    ended = alone(write_run(tmp_path, pp_size=1, sp_size=1, changes={"model": {"heads": 4, "kv_heads": 3}}))

    assert ended.returncode == 2
    assert ended.stderr == "error: model.kv_heads is 3, it must divide model.heads, which is 4\n"


def test_an_address_that_cannot_be_a_planners_is_refused_at_once(tmp_path: Path) -> None:
    ended = alone(write_run(tmp_path), planner="127.0.0.1:99999")

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: planner address '127.0.0.1:99999': the port must be a number from 1 to")


def test_a_token_outside_of_the_vocabulary_names_document_id_and_vocabulary(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=1, sp_size=1)
    tokenizer = tmp_path / "tokenizer.json"
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from infinipipe_executor.data.tokenizer import train_tokenizer;"
            "train_tokenizer(['alpha beta gamma delta ' * 50], 270).save(sys.argv[1])",
            str(tokenizer),
        ],
        check=True,
        timeout=60,
    )
    given = '[data]\ntokenizer = "tokenizer.json"'
    config.write_text(config.read_text().replace("vocab = 300", "vocab = 260").replace("[data]", given))
    (tmp_path / "profile.json").write_text((tmp_path / "profile.json").read_text().replace("300", "260"))

    ended = alone(config)

    assert ended.returncode == 1
    assert re.fullmatch(
        r"error: document 00\.txt: token id \d+ is outside of the vocabulary of 260 entries "
        r"\(\[model\] vocab; \d+ such tokens in the corpus\)\n",
        ended.stderr,
    )


def test_an_empty_corpus_is_said_once_though_all_ranks_meet_it(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"data": {"pattern": "*.rst"}})

    ended = torchrun(config, NOBODY, ranks=2)

    assert_one_clear_end(ended, "the corpus is empty", "'*.rst'", str(tmp_path / "texts"))


def test_without_a_planner_the_run_ends_and_says_how_to_start_one(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"planner": {"connect_timeout_s": 2.0}})

    ended = torchrun(config, NOBODY, ranks=2)

    assert_one_clear_end(ended, f"no planner at {NOBODY} after 2 s: is `infinipipe serve` running there?")


def test_a_batch_that_cannot_fit_names_stage_bytes_and_knob(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"cluster": {"device_memory_mib": 0.5}})

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=2)

    assert_one_clear_end(ended, "does not fit in memory: stage 1 needs", "usable", "context_tokens")


def move_a_token(plan: ExecutionPlan) -> ExecutionPlan:
    """Corrupt a plan as a bit on the way would: the digest stays."""
    first = plan.pipelines[0]
    chunk = first.chunks[0]
    longer = chunk.slices[0]._replace(length_tokens=chunk.slices[0].length_tokens + 1)
    chunks = (chunk._replace(slices=(longer, *chunk.slices[1:])), *first.chunks[1:])
    return replace(plan, pipelines=(Pipeline(chunks, first.stages), *plan.pipelines[1:]))


def of_another_job(plan: ExecutionPlan) -> ExecutionPlan:
    foreign = replace(plan, job="somebody-elses")
    return replace(foreign, digest=plan_digest(foreign))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (move_a_token, ["step 0: invalid plan: digest", "does not match the content"]),
        (of_another_job, ["step 0: invalid plan:", "'somebody-elses'", "'tiny'"]),
    ],
)
def test_a_corrupt_or_foreign_plan_is_never_run(
    tmp_path: Path, change: Callable[[ExecutionPlan], ExecutionPlan], words: list[str]
) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1)

    with planner_thread(ThreadSolver(change)) as planner:
        ended = torchrun(config, planner, ranks=2)

    assert_one_clear_end(ended, *words, planner)
    assert "  loss " not in ended.output.split("error:")[0].partition("corpus:")[2]


def test_a_worker_killed_in_the_middle_of_a_step_takes_the_run_down_and_is_named_last(tmp_path: Path) -> None:
    config = write_run(tmp_path)

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=4, module=("support_e2e.faulty_worker", "kill"), timeout_s=60)

    struck_s = float(ended.output.split("strikes at ")[1].split()[0])
    assert time.time() - struck_s < END_S
    assert ended.code != 0
    assert "step 1 of 4" in ended.output
    assert "step 2 of 4" not in ended.output
    assert "Signal 9 (SIGKILL)" in last_words(ended)
    assert "rank      : 1 " in last_words(ended)


def test_an_exception_in_one_rank_is_the_last_word_of_the_run(tmp_path: Path) -> None:
    config = write_run(tmp_path)

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=4, module=("support_e2e.faulty_worker", "raise"), timeout_s=60)

    struck_s = float(ended.output.split("strikes at ")[1].split()[0])
    assert time.time() - struck_s < END_S
    assert ended.code != 0
    sentence = r"error: rank 1 failed: ValueError: planted fault, during step 2, backward of chunk \d+ in pipeline \d+"
    assert re.search(rf"^{sentence}$", ended.output, re.MULTILINE), ended.output
    assert "rank      : 1 " in last_words(ended)
    assert re.search(sentence, last_words(ended)), ended.output
    assert "PeerLostError" not in last_words(ended)


def test_a_rank_that_hangs_between_steps_ends_the_run_within_the_jobs_timeouts(tmp_path: Path) -> None:
    changes = {"cluster": {"collective_timeout_s": 4.0}, "planner": {"connect_timeout_s": 2.0}}
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes=changes)

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=2, module=("support_e2e.faulty_worker", "sleep"), timeout_s=60)

    struck_s = float(ended.output.split("strikes at ")[1].split()[0])
    assert time.time() - struck_s < 4.0 + 2.0 + END_S
    assert ended.code != 0
    # Nobody knows more than that rank 1 is silent: this is the last word then.
    sentence = "error: rank 0 lost another rank during the start of step 2: "
    assert sentence in ended.output
    assert sentence in last_words(ended)


def test_a_rank_that_reads_its_data_longer_than_a_collective_may_take_is_waited_for(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"cluster": {"collective_timeout_s": 4.0}})

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=2, module=("support_e2e.faulty_worker", "slow"), timeout_s=60)

    assert ended.code == 0, ended.output
    assert "rank 0 waits 5 s for rank 1 to prepare the data" in ended.output
    assert "step 3 of 4" in ended.output


def test_a_learning_rate_that_destroys_the_model_ends_the_run_on_all_ranks_in_one_sentence(tmp_path: Path) -> None:
    changes: dict[str, dict[str, object]] = {"optimizer": {"learning_rate": 1e30}, "job": {"steps": 50}}
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes=changes)

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=2)

    assert_one_clear_end(ended, "step 1: training has diverged: loss ", "gradient norm ", "learning_rate")
    assert "step  0 of 50" in ended.output
    assert "step  1 of 50" not in ended.output


def test_ranks_that_read_different_batches_stop_at_the_first_step(tmp_path: Path) -> None:
    # Lengths are equal, so that only the digest of the batch can tell.
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"data": {"context_tokens": 3}})

    with planner_thread(ThreadSolver()) as planner:
        ended = torchrun(config, planner, ranks=2, module=("support_e2e.faulty_worker", "seed"))

    assert_one_clear_end(ended, "step 0: the ranks read different batches: rank 0 ", "rank 1 ")
    assert "  loss " not in ended.output


def test_a_planner_slower_than_the_collective_timeout_costs_time_and_nothing_else(tmp_path: Path) -> None:
    config = write_run(tmp_path, pp_size=2, sp_size=1, changes={"cluster": {"collective_timeout_s": 4.0}})

    with planner_thread(ThreadSolver(delay_s=lambda step: 8.5 if step == 2 else 0.0)) as planner:
        ended = torchrun(config, planner, ranks=2)

    assert ended.code == 0, ended.output
    assert "rank 0 waits 5 s for the plan of step 2" in ended.output
    assert "step 3 of 4" in ended.output
