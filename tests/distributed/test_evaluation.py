"""Evaluation: the loss of held-out data is that of one sequence at a time, and training does not notice it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from infinipipe_executor.config import load_config
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import open_corpus, open_evaluation_corpus
from support_e2e.evaluation_ranks import evaluate_plan, hand_on_plan, train_run
from support_e2e.runs import TINY as TINY_TEXT
from support_e2e.runs import Sections, write_run, write_texts
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, uniform
from support_executor.proof import TOLERANCE
from support_executor.ranks import SEED
from support_executor.reference import FAMILIES, TINY, reference_step

pytestmark = pytest.mark.distributed

LAYOUTS = [(1, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 2, 2), (2, 1, 1), (2, 2, 1)]
"""Replicas, stages, ranks of a stage."""

HELD_OUT: Sections = {"data": {"evaluation_corpus": "held-out"}, "evaluation": {"every_steps": 2, "sequences": 8}}


def held_out_run(folder: Path, changes: Sections | None = None, *, pp_size: int) -> Path:
    """A run of four steps that evaluates eight sequences, in batches of six and of two, behind steps 1 and 3."""
    together: dict[str, dict[str, object]] = {section: dict(keys) for section, keys in HELD_OUT.items()}
    for section, keys in (changes or {}).items():
        together.setdefault(section, {}).update(keys)
    write_texts(folder / "held-out")
    return write_run(folder, pp_size=pp_size, sp_size=1, changes=together)


@pytest.mark.parametrize("config", [TINY, FAMILIES["qwen 2"]], ids=["llama", "tied"])
@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), LAYOUTS)
def test_the_loss_of_forward_passes_alone_equals_one_sequence_at_a_time(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int, config: object
) -> None:
    assert isinstance(config, type(TINY))
    batch = make_batch([31, 12, 1, 8, 26, 5, 9], masked=[5])
    split, hybrid = cut(0, 13, 12, 6), cut(4, 15, 11)
    first = [*map(chunk, split[:2]), chunk(split[2], *cut(1, 12)), chunk(*cut(2, 1), *cut(3, 8))]
    second = [chunk(hybrid[0]), chunk(hybrid[1], *cut(5, 5)), chunk(*cut(6, 9))]
    plan = make_plan([first, second], pp_size, batch, uniform(1), replicas=[0, dp_size - 1])
    dropped = dataclasses.replace(config, dropout=0.5)

    ranks = groups.run(dp_size * pp_size * sp_size, evaluate_plan, dropped, dp_size, pp_size, sp_size, plan, batch)

    expected = reference_step(config, SEED, batch).loss  # without dropout, and without the z-loss of the training
    for rank in ranks:
        assert rank.loss_sum / batch.target_token_count == pytest.approx(expected, rel=TOLERANCE)
        assert rank.is_untouched
        # Nothing is kept for backward passes, and no gradient is sent.
        assert rank.held_bytes == 0
        assert 2 * rank.message_count == rank.training_message_count
    assert pp_size == 1 or all(rank.message_count for rank in ranks)


def test_a_run_trains_bit_by_bit_the_same_with_and_without_evaluation(groups: GroupPool, tmp_path: Path) -> None:
    dropout: Sections = {"model": {"dropout": 0.1}, "metrics": {"jsonl": "metrics.jsonl"}}
    with_it = held_out_run(tmp_path / "with", dropout, pp_size=2)
    without = write_run(tmp_path / "without", dp_size=1, pp_size=2, sp_size=1, changes={"model": {"dropout": 0.1}})

    evaluated = groups.run(2, train_run, with_it)
    plain = groups.run(2, train_run, without)

    assert evaluated[0].is_done
    assert len(plain[0].losses) == 4
    for one, other in zip(evaluated, plain, strict=True):
        assert one.losses == other.losses
        assert one.parameters is not None
        assert torch.equal(one.parameters, other.parameters)
    lines = [message.split("  ") for message in evaluated[0].log if "evaluation loss" in message]
    assert [line[0] for line in lines] == ["step 1 of 4", "step 3 of 4"]
    # Each of both batches is planned once, however often it is evaluated.
    assert [count for what, count in evaluated[0].asked if what == "solve"] == [6, 2]
    rows = [json.loads(line) for line in (tmp_path / "with/metrics.jsonl").read_text().splitlines()]
    told = [row for row in rows if "evaluation_loss" in row]
    assert [row["step"] for row in told] == [1, 3]
    assert [f"evaluation loss {row['evaluation_loss']:.4f}" for row in told] == [line[1] for line in lines]
    assert [row["step"] for row in rows if "loss" in row] == [0, 1, 2, 3]


def test_held_out_sequences_are_evaluated_in_order_each_target_once(groups: GroupPool, tmp_path: Path) -> None:
    still: Sections = {
        "optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0},
        "metrics": {"jsonl": "metrics.jsonl"},
    }
    path = held_out_run(tmp_path, still, pp_size=1)

    (run,) = groups.run(1, train_run, path)

    config = load_config(path)
    held_out = open_evaluation_corpus(config.data, TINY_TEXT.vocab, open_corpus(config.data, TINY_TEXT.vocab).tokenizer)
    assert run.is_done
    assert held_out is not None
    batch = Batch(tuple(held_out.sequence(index) for index in range(8)))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (first, second) = [row for row in rows if "evaluation_loss" in row]
    assert first["evaluation_loss"] == pytest.approx(reference_step(TINY_TEXT, 3, batch).loss, rel=1e-5)
    assert first["evaluation_loss"] == second["evaluation_loss"]
    assert first["evaluation_target_tokens"] == batch.target_token_count
    assert first["evaluation_tokens"] == sum(batch.lengths_tokens)


def test_a_signal_within_an_evaluation_ends_all_ranks_before_its_next_batch(groups: GroupPool, tmp_path: Path) -> None:
    path = held_out_run(tmp_path, pp_size=2)

    runs = groups.run(2, train_run, path, 1)

    for run in runs:
        assert not run.is_done
        assert run.error == ""
        assert len(run.losses) == 2
    assert not [message for message in runs[0].log if "evaluation loss" in message]
    assert runs[0].log[-1].startswith("ended by SIGTERM: 2 of 4 steps are done")


def test_a_signal_within_the_last_evaluation_leaves_a_line_in_place_of_its_loss(
    groups: GroupPool, tmp_path: Path
) -> None:
    path = held_out_run(tmp_path, {"evaluation": {"every_steps": 9}}, pp_size=2)

    runs = groups.run(2, train_run, path, 1)

    assert [run.is_done for run in runs] == [True, True]
    assert len(runs[0].losses) == 4
    given_up = "step 3: the evaluation behind it was given up: a rank was told to end (SIGTERM)"
    assert [run.log.count(given_up) for run in runs] == [1, 0]
    assert not [message for message in runs[0].log if "evaluation loss" in message]


def test_ranks_with_different_plans_of_held_out_data_all_end(groups: GroupPool, tmp_path: Path) -> None:
    path = held_out_run(tmp_path, pp_size=2)

    runs = groups.run(2, train_run, path, -1, 1)

    for run in runs:
        assert run.error.startswith("PlanError: step 1: the ranks hold different plans: rank 0 ")


def test_one_rank_has_a_held_out_batch_planned_and_hands_the_plan_on(groups: GroupPool) -> None:
    ranks = groups.run(2, hand_on_plan, make_batch([40, 9, 3]), "hand-on")

    assert [asked for _, asked in ranks] == [[("solve", 3)], []]
    assert ranks[0][0] == ranks[1][0]
