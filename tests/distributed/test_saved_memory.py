"""The memory that a step really takes."""

import pytest

from infinipipe_contract.model_memory import logits_bytes, parameter_count, token_bytes
from infinipipe_executor.model.config import ModelConfig
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.proof import run_plan
from support_executor.reference import FAMILIES, TINY

FP64_BYTES = 8


@pytest.mark.parametrize("sp_size", [1, 2, 4])
@pytest.mark.parametrize("config", [TINY, *FAMILIES.values()], ids=["plain", *FAMILIES])
def test_the_ranks_of_a_stage_hold_together_what_the_memory_model_counts(
    groups: GroupPool, config: ModelConfig, sp_size: int
) -> None:
    batch = make_batch([23, 6])

    steps = run_plan(groups, make_plan([[chunk(*cut(0, 23), *cut(1, 6))]], 1, batch), batch, sp_size, config)

    id_bytes = 8  # the embedding saves the ids
    per_token = token_bytes(config.shape, FP64_BYTES, sp_size) + logits_bytes(config.shape, FP64_BYTES) + id_bytes
    parameters_and_gradients = 2 * FP64_BYTES * parameter_count(config.shape, 1, 0)
    assert sum(step.peak_bytes for step in steps) == 29 * per_token + parameters_and_gradients
