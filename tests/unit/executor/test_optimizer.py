"""AdamW with decoupled decay of matrices only."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infinipipe_executor.config import OptimizerConfig, load_config
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.optimizer import build_optimizer, set_learning_rate, state_bytes
from support_e2e.runs import Sections, write_run
from support_executor.reference import FAMILIES, TINY
from support_executor.single import plain_stage

BIASED = replace(FAMILIES["qwen 2"], has_qk_norm=True, ties_embeddings=False)


def with_gradients(stage: Stage, value: float) -> Stage:
    for parameter in stage.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return stage


def test_matrices_and_the_embedding_decay_and_norms_and_biases_do_not() -> None:
    stage = with_gradients(plain_stage(BIASED, 1, 0), 0.0)
    before = {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}
    optimizer = build_optimizer(stage, OptimizerConfig(learning_rate=0.5, weight_decay=0.2))

    optimizer.step()

    kept = {name for name, parameter in stage.named_parameters() if torch.equal(parameter, before[name])}
    names_1d = ("norm.weight", ".bias")
    assert {name for name in kept if before[name].any()} == {name for name in before if name.endswith(names_1d[0])}
    assert all(name.endswith(names_1d) for name in kept)
    for name, parameter in stage.named_parameters():
        if name not in kept:
            # A gradient of zero leaves the decay alone: decoupled, so whatever the moments are.
            torch.testing.assert_close(parameter.detach(), (1 - 0.5 * 0.2) * before[name])
    assert {"embedding.weight", "head.weight"}.isdisjoint(kept)


def test_the_state_takes_two_numbers_a_parameter_once_it_is_there() -> None:
    stage = with_gradients(plain_stage(BIASED, 1, 0, torch.float32), 0.0)
    optimizer = build_optimizer(stage, OptimizerConfig(learning_rate=0.5))
    assert state_bytes(optimizer) == 0

    optimizer.step()

    assert state_bytes(optimizer) == 2 * sum(parameter.nbytes for parameter in stage.parameters())


def test_every_parameter_is_in_one_group() -> None:
    stage = plain_stage(BIASED, 1, 0)

    optimizer = build_optimizer(stage, OptimizerConfig(learning_rate=0.5, weight_decay=0.2))

    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(map(id, stage.parameters()))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]


def test_the_fused_update_is_the_one_of_the_paper() -> None:
    stage = plain_stage(TINY, 1, 0)
    config = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, betas=(0.8, 0.9))
    optimizer = build_optimizer(stage, config)
    weight = stage.head.weight if stage.head is not None else pytest.fail("a single stage has a head")
    expected, first, second = weight.detach().clone(), 0.0, 0.0
    for count, (gradient, rate) in enumerate([(0.5, 1e-2), (-0.25, 5e-3), (2.0, 1e-3)], start=1):
        with_gradients(stage, gradient)
        set_learning_rate(optimizer, rate)
        optimizer.step()

        first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
        expected *= 1 - rate * 0.1
        expected -= rate * (first / (1 - 0.8**count)) / (math.sqrt(second / (1 - 0.9**count)) + 1e-8)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"schedule": "cosin"}, ["[optimizer] schedule", "'cosin'", "'constant', 'linear' or 'cosine'"]),
        ({"decay_steps": 5}, ["[optimizer] decay_steps is 5", 'schedule is "constant"']),
        ({"min_learning_rate": 1e-3}, ["[optimizer] min_learning_rate is 0.001", 'schedule is "constant"']),
        (
            {"schedule": "linear", "warmup_steps": 5, "decay_steps": 5},
            ["[optimizer] decay_steps is 5", "more than [optimizer] warmup_steps, which is 5"],
        ),
        ({"schedule": "linear", "warmup_steps": 4}, ["warmup_steps is 4", "less than decay_steps", "[job] steps, 4"]),
        (
            {"schedule": "linear", "min_learning_rate": 0.1},
            ["[optimizer] min_learning_rate is 0.1", "at most [optimizer] learning_rate, which is 0.01"],
        ),
        ({"max_grad_norm": 0.0}, ["[optimizer] max_grad_norm is 0.0", "greater than 0"]),
        ({"z_loss": -1e-4}, ["[optimizer] z_loss is -0.0001", "greater than or equal to 0"]),
        ({"warmup_steps": -1}, ["[optimizer] warmup_steps is -1", "greater than or equal to 0"]),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_key_and_limit(
    tmp_path: Path, optimizer: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(write_run(tmp_path, changes={"optimizer": optimizer}))

    for word in words:
        assert word in str(refusal.value)


def test_clipping_is_turned_off_by_an_infinite_norm(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    path.write_text(path.read_text().replace("learning_rate = 0.01", "learning_rate = 0.01\nmax_grad_norm = inf"))

    assert load_config(path).optimizer.max_grad_norm == math.inf

    path.write_text(path.read_text().replace("max_grad_norm = inf", "max_grad_norm = nan"))
    with pytest.raises(ConfigError, match=r"\[optimizer\] max_grad_norm is nan"):
        load_config(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"evaluation_corpus": "held"}}, ["[evaluation] is None", "[data] evaluation_corpus is set"]),
        ({"evaluation": {"every_steps": 2}}, ["[evaluation]", "set [data] evaluation_corpus"]),
        (
            {"data": {"evaluation_corpus": "held"}, "evaluation": {"every_steps": 0}},
            ["[evaluation] every_steps is 0", "greater than or equal to 1"],
        ),
    ],
)
def test_held_out_data_and_their_section_go_together(tmp_path: Path, changes: Sections, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(write_run(tmp_path, changes=changes))

    for word in words:
        assert word in str(refusal.value)
