"""Chunks that attention on CUDA cannot index are refused before the step, not in the middle of it."""

import pytest
import torch

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.errors import PlanError
from infinipipe_executor.model.config import ModelConfig
from support_executor.memory_meter import MeasuredStage, measure_stage
from support_executor.plans import chunk, cut, make_plan

pytest.importorskip("triton")

# 64 query heads of 128 on one rank: 2^18 rows of them are 2^31 elements.
CONFIG = ModelConfig(layers=2, hidden=64, heads=64, kv_heads=2, head_dim=128, ffn=96, vocab=160)
MOST_TOKENS = 2**18 - 1


def batch_of(token_count: int) -> tuple[ExecutionPlan, Batch]:
    ids, mask = torch.zeros(token_count, dtype=torch.int64), torch.ones(token_count, dtype=torch.bool)
    batch = Batch((make_sequence(ids[:9], mask[:9]), make_sequence(ids, mask)))
    return make_plan([[chunk(*cut(0, 9)), chunk(*cut(1, token_count))]], 2, batch), batch


def run(token_count: int, sp_size: int, stage_index: int = 1) -> MeasuredStage:
    """Run a step on tensors without elements, with the kernels for CUDA."""
    plan, batch = batch_of(token_count)
    return measure_stage(CONFIG, plan, batch, sp_size, stage_index, [1, 1])


def test_the_largest_chunk_that_attention_takes_is_run() -> None:
    assert run(MOST_TOKENS, 1).peak_bytes > 0


@pytest.mark.parametrize("stage_index", [0, 1])
def test_a_larger_chunk_is_refused_on_every_stage_with_the_knob_that_helps(stage_index: int) -> None:
    with pytest.raises(PlanError) as refused:
        run(MOST_TOKENS + 1, 1, stage_index)

    assert str(refused.value) == (
        "the plan of step 0 has 262144 tokens in chunk 1 of pipeline 0, attention on CUDA takes at most 262143 with "
        "64 query heads of 128 on a rank; use more ranks a stage ([cluster] sp_size)"
    )


def test_more_ranks_a_stage_take_a_larger_chunk() -> None:
    assert run(MOST_TOKENS + 1, 2).peak_bytes > 0
