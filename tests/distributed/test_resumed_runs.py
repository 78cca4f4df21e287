"""A run that is ended and goes on trains what an uninterrupted one would have trained."""

import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infinipipe_executor.checkpoint_io import Checkpoints
from support_e2e.resumed_ranks import Part, train_part
from support_e2e.runs import write_run
from support_executor.groups import GroupPool

Changes = dict[str, dict[str, object]]


def run_config(
    folder: Path, *, steps: int = 8, pp_size: int = 2, sp_size: int = 1, changes: Changes | None = None
) -> Path:
    sections: Changes = {
        "job": {"steps": steps},
        "data": {"sequences_per_batch": 5},
        "checkpoint": {"folder": "checkpoints", "every_steps": 100},
    }
    for section, keys in (changes or {}).items():
        sections.setdefault(section, {}).update(keys)
    return write_run(folder, pp_size=pp_size, sp_size=sp_size, changes=sections)


def with_key(config: Path, old: str, new: str) -> Path:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return config


def names(config: Path) -> list[str]:
    return sorted(path.name for path in (config.parent / "checkpoints").iterdir())


def warnings(part: Part) -> list[str]:
    return [message for level, message in part.log if level == "WARNING"]


def test_a_run_ended_three_times_trains_bit_by_bit_what_one_without_ends_trains(
    groups: GroupPool, tmp_path: Path
) -> None:
    # 24 sequences, 5 a step: step 4 is the smaller last one of an epoch, and dropout draws masks on both ranks.
    dropout: Changes = {"model": {"dropout": 0.1}}
    whole = groups.run(2, train_part, run_config(tmp_path / "whole", changes=dropout))
    config = run_config(tmp_path / "parts", changes=dropout)
    parts = [groups.run(2, train_part, config, rank, behind) for rank, behind in ((1, 1), (0, 3), (1, 4), (-1, -1))]

    assert [[part[0].is_done, part[1].is_done] for part in parts] == [[False] * 2, [False] * 2, [False] * 2, [True] * 2]
    assert [part[0].steps for part in parts] == [[0, 1], [2, 3], [4], [5, 6, 7]]
    for rank in range(2):
        assert [digest for part in parts for digest in part[rank].batches] == whole[rank].batches
        assert [loss for part in parts for loss in part[rank].losses] == whole[rank].losses
        assert torch.equal(parts[-1][rank].parameters, whole[rank].parameters)


def test_a_run_goes_on_with_other_numbers_of_replicas_stages_and_ranks(groups: GroupPool, tmp_path: Path) -> None:
    # The head is the embedding: two stages hold a copy each, one stage holds it once.
    whole = groups.run(2, train_part, run_config(tmp_path / "whole"), -1, -1, None, True)
    config = run_config(tmp_path / "parts")
    parts = [groups.run(2, train_part, config, 0, 2, None, True)]
    for (dp_size, pp_size, sp_size), behind in (((1, 2, 2), 3), ((2, 1, 2), 5), ((1, 3, 1), 6), ((1, 2, 1), -1)):
        text = re.sub(r"(dp_size = \d\n)?pp_size = \d", f"dp_size = {dp_size}\npp_size = {pp_size}", config.read_text())
        config.write_text(re.sub(r"sp_size = \d", f"sp_size = {sp_size}", text))
        parts.append(groups.run(dp_size * pp_size * sp_size, train_part, config, 0, behind, None, True))

    assert [part[0].error for part in parts] == [""] * 5
    assert [step for part in parts for step in part[0].steps] == list(range(8))
    assert [digest for part in parts for digest in part[0].batches] == whole[0].batches
    assert [loss for part in parts for loss in part[0].losses] == pytest.approx(whole[0].losses, rel=1e-6)


def test_checkpoints_are_saved_while_training_goes_on_and_the_newest_are_kept(
    groups: GroupPool, tmp_path: Path
) -> None:
    config = run_config(tmp_path, steps=7, changes={"checkpoint": {"every_steps": 2, "keep": 2}})

    part, other = groups.run(2, train_part, config)

    assert names(config) == ["step-6", "step-7"]
    saved = [message.split()[1] for _, message in part.log if message.startswith("checkpoint ")]
    assert [Path(path).name for path in saved] == ["step-2", "step-4", "step-6", "step-7"]
    assert not [message for _, message in other.log if message.startswith("checkpoint ")]


def test_a_finished_run_says_so_and_one_with_more_steps_goes_on(groups: GroupPool, tmp_path: Path) -> None:
    config = run_config(tmp_path, steps=2, pp_size=1)
    groups.run(1, train_part, config)

    (again,) = groups.run(1, train_part, config)
    (longer,) = groups.run(1, train_part, with_key(config, "steps = 2", "steps = 3"))

    assert again.is_done
    assert not again.steps
    assert "the run is finished: checkpoint" in again.log[-1][1]
    assert "step-2 holds 2 steps, and [job] steps is 2; raise it to train on" in again.log[-1][1]
    assert longer.steps == [2]


@pytest.fixture
def two_checkpoints(groups: GroupPool, tmp_path: Path) -> Path:
    """A run of 6 steps of which 4 are done, with checkpoints behind 2 and 4."""
    config = run_config(tmp_path, steps=4, pp_size=1, changes={"checkpoint": {"every_steps": 2}})
    groups.run(1, train_part, config)
    assert names(config) == ["step-2", "step-4"]
    return with_key(config, "steps = 4", "steps = 6")


def missing(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def truncated(path: Path) -> None:
    data = (path / "__0_0.distcp").read_bytes()
    (path / "__0_0.distcp").write_bytes(data[:-1])


def flipped(path: Path) -> None:
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "__0_0.distcp").write_bytes(data)


def flipped_metadata(path: Path) -> None:
    data = bytearray((path / ".metadata").read_bytes())
    data[-2] ^= 1
    (path / ".metadata").write_bytes(data)


def other_record(path: Path) -> None:
    record = (path / "checkpoint.json").read_text()
    (path / "checkpoint.json").write_text(record.replace('"step": ', '"step": 1'))


def empty_record(path: Path) -> None:
    (path / "checkpoint.json").write_text("")


def no_record(path: Path) -> None:
    (path / "checkpoint.json").unlink()


@pytest.mark.parametrize(
    ("tear", "problem"),
    [
        (missing, "__0_0.distcp is missing (No such file or directory)"),
        (truncated, r"__0_0.distcp has \d+ bytes in place of \d+"),
        (flipped, "__0_0.distcp does not match its digest"),
        (flipped_metadata, ".metadata does not match its digest"),
        (other_record, "checkpoint.json does not match its digest"),
        (empty_record, "checkpoint.json is damaged"),
        (no_record, "checkpoint.json cannot be read (No such file or directory)"),
    ],
)
def test_a_torn_checkpoint_is_told_in_one_sentence_and_the_one_before_it_is_used(
    groups: GroupPool, two_checkpoints: Path, tear: Callable[[Path], None], problem: str
) -> None:
    tear(two_checkpoints.parent / "checkpoints" / "step-4")

    (part,) = groups.run(1, train_part, two_checkpoints)

    assert part.steps == [2, 3, 4, 5]
    (warning,) = warnings(part)
    told = re.escape(problem) if "\\d" not in problem else problem
    assert re.fullmatch(rf"checkpoint .*/step-4 is torn: {told}; an earlier one is looked for", warning)
    # The next save of those steps takes its place.
    assert names(two_checkpoints) == ["step-4", "step-6"]
    (again,) = groups.run(1, train_part, two_checkpoints)
    assert again.is_done
    assert not warnings(again)


def test_a_folder_of_torn_checkpoints_only_never_starts_from_scratch(groups: GroupPool, two_checkpoints: Path) -> None:
    folder = two_checkpoints.parent / "checkpoints"
    truncated(folder / "step-4")
    missing(folder / "step-2")

    (part,) = groups.run(1, train_part, two_checkpoints)

    assert part.error.startswith(f"CheckpointError: no checkpoint in {folder} is whole (step-4: __0_0.distcp has ")
    assert "; step-2: __0_0.distcp is missing (No such file or directory)): restore one of them, or " in part.error
    assert names(two_checkpoints) == ["step-2", "step-4"]


def test_what_a_save_left_unfinished_is_no_checkpoint_and_is_cleared(groups: GroupPool, tmp_path: Path) -> None:
    config = run_config(tmp_path, steps=2, pp_size=1)
    left = tmp_path / "checkpoints" / "step-1.partial"
    left.mkdir(parents=True)
    (left / "__0_0.distcp").write_text("half")

    (part,) = groups.run(1, train_part, config)

    assert part.steps == [0, 1]
    assert ("INFO", f"{left} is left over from a save that was cut short: removed") in part.log
    assert names(config) == ["step-2"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sequences_per_batch = 5", "sequences_per_batch = 4", ["[data] sequences_per_batch is 4, there it was 5"]),
        ("seed = 3", "seed = 4", ["[job] seed is 4, there it was 3"]),
        ("context_tokens = 128", "context_tokens = 100", ["the fingerprint of the sequences ([data] corpus,", '"']),
        ("hidden = 32", "hidden = 40", ["[model] hidden is 40, there it was 32"]),
    ],
)
def test_other_data_or_another_model_is_refused_by_name(
    groups: GroupPool, two_checkpoints: Path, old: str, new: str, words: list[str]
) -> None:
    (part,) = groups.run(1, train_part, with_key(two_checkpoints, old, new))

    assert part.error.startswith("ConfigError: the run cannot go on from checkpoint ")
    assert "step-4: " in part.error
    for word in words:
        assert word in part.error


def test_a_changed_document_is_refused(groups: GroupPool, two_checkpoints: Path) -> None:
    (two_checkpoints.parent / "texts" / "03.txt").write_text("another text\n")

    (part,) = groups.run(1, train_part, two_checkpoints)

    assert (
        "the fingerprint of the sequences ([data] corpus, tokenizer, context_tokens, beyond_context) is" in part.error
    )


def test_other_rates_and_more_dropout_are_no_other_run(groups: GroupPool, two_checkpoints: Path) -> None:
    config = with_key(two_checkpoints, "learning_rate = 0.01", "learning_rate = 0.02")

    (part,) = groups.run(1, train_part, with_key(config, "vocab = 300", "vocab = 300\ndropout = 0.2"))

    assert part.steps == [4, 5]


class FullDisk:
    """Lets files grow to a small size only, behind one step, and to any size again behind another one."""

    def __init__(self, full_behind: int, free_behind: int) -> None:
        self._limits = {full_behind: 1000, free_behind: resource.RLIM_INFINITY}

    def __call__(self, step: int, checkpoints: Checkpoints) -> None:
        if step in self._limits:
            checkpoints.finish()  # what was written before is no matter of this
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._limits[step], resource.RLIM_INFINITY))


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(groups: GroupPool, tmp_path: Path) -> None:
    config = run_config(tmp_path, steps=6, changes={"checkpoint": {"every_steps": 2}})

    # No file of either rank grows beyond 1,000 bytes while steps 3 and 4 are trained.
    parts = groups.run(2, train_part, config, -1, -1, FullDisk(full_behind=2, free_behind=4))

    for part in parts:
        assert part.steps == [0, 1, 2, 3, 4, 5]
    (warning,) = warnings(parts[0])
    assert warning.startswith("the checkpoint of 4 steps could not be saved: rank 0: File too large; earlier ones stay")
    assert names(config) == ["step-2", "step-6"]


def test_a_run_whose_end_cannot_be_saved_says_so(groups: GroupPool, tmp_path: Path) -> None:
    config = run_config(tmp_path, steps=2, pp_size=1, changes={"checkpoint": {"every_steps": 1}})

    (part,) = groups.run(1, train_part, config, -1, -1, FullDisk(full_behind=1, free_behind=9))
    groups.close()  # the limit of its process stays

    assert part.error.startswith(
        "CheckpointError: the run ends after 2 steps, and they could not be saved: rank 0: File"
    )
    assert names(config) == ["step-1"]
