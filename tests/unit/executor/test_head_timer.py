"""The head is measured within ordinary passes, and the stage is left as it was."""

import time

import pytest
import torch

from infinipipe_contract.plan import ActionKind
from infinipipe_executor.head_timer import HeadTimer
from infinipipe_executor.model.config import ModelConfig
from support_executor.plans import chunk, cut, make_batch
from support_executor.single import chunk_passes, plain_stage

CPU = torch.device("cpu")

# A vocabulary so large that the head is most of the stage.
MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=20_000)


@pytest.mark.alone
def test_a_pass_of_the_head_is_a_part_of_the_pass_and_most_of_it_where_the_vocabulary_is_large() -> None:
    stage, chunks, batch = plain_stage(MODEL, 1, 0), [chunk(*cut(0, 200)), chunk(*cut(1, 100))], make_batch([200, 100])
    passed_s: dict[tuple[ActionKind, int], float] = {}

    with HeadTimer(stage, CPU) as head:
        for index, one in enumerate(chunk_passes(stage, chunks, batch)):
            started_s = time.perf_counter()
            loss = stage(one.layout.own_token_ids(batch), one)
            between_s = time.perf_counter()
            torch.autograd.backward(loss)
            passed_s[ActionKind.FORWARD, index] = between_s - started_s
            passed_s[ActionKind.BACKWARD, index] = time.perf_counter() - between_s

    for key, whole_s in passed_s.items():
        assert 0.5 * whole_s < head.seconds(*key) < whole_s, key


@pytest.mark.parametrize("stage_index", [0, 1])
def test_only_the_last_stage_has_a_head_and_nothing_is_measured_afterwards(stage_index: int) -> None:
    stage, chunks, batch = plain_stage(MODEL, 2, stage_index), [chunk(*cut(0, 20))], make_batch([20])
    (one,) = chunk_passes(stage, chunks, batch)
    x = one.layout.own_token_ids(batch) if stage_index == 0 else torch.randn(20, 32, dtype=torch.float64)

    with HeadTimer(stage, CPU) as head:
        stage(x, one)
    stage(x, one)

    assert (head.seconds(ActionKind.FORWARD, 0) > 0) == (stage_index == 1)
    assert head.seconds(ActionKind.FORWARD, 1) == 0.0
