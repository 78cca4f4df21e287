"""bf16 computes; fp32 holds the weights, sums the gradients and takes the updates."""

import pytest
import torch

from infinipipe_contract.plan import Chunk
from infinipipe_executor.model.config import ModelConfig
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, uniform
from support_executor.precision_ranks import see_types, train_with_tiny_rate
from support_executor.proof import gradients_of, run_plan
from support_executor.ranks import SEED
from support_executor.reference import ReferenceStep, reference_step

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=97)
LENGTHS_TOKENS = [40, 24, 9, 15]
BATCH = make_batch(LENGTHS_TOKENS)

KINDS: dict[str, list[Chunk]] = {
    "batched": [chunk(*cut(0, 40)), chunk(*cut(1, 24), *cut(2, 9), *cut(3, 15))],
    "split": [*map(chunk, cut(0, 12, 10, 10, 8)), *map(chunk, cut(1, 13, 11)), chunk(*cut(2, 9)), chunk(*cut(3, 15))],
    "hybrid": [*map(chunk, cut(0, 16, 16)), chunk(cut(0, 16, 16, 8)[2], *cut(2, 9)), chunk(*cut(1, 24), *cut(3, 15))],
}
LAYOUTS = [(1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 1), (1, 2, 2)]
"""Replicas, stages, ranks of a stage."""

MAX_GRADIENT_ERROR, MAX_LOSS_ERROR = 3e-2, 1e-3
"""Largest relative errors of a parameter's gradient (Euclidean norm) and of the loss, against fp64."""

_references: list[ReferenceStep] = []


def reference() -> ReferenceStep:
    if not _references:
        _references.append(reference_step(MODEL, SEED, BATCH))
    return _references[0]


@pytest.mark.parametrize("recompute", [0, 4], ids=["no recompute", "all layers recomputed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), LAYOUTS)
def test_gradients_in_bf16_are_a_few_roundings_from_fp64_however_the_batch_is_run(
    groups: GroupPool,
    dp_size: int,
    pp_size: int,
    sp_size: int,
    kind: str,
    recompute: int,
) -> None:
    # Two replicas share the chunks where no sequence is torn apart.
    chunks = KINDS[kind]
    parts = [chunks] if dp_size == 1 else [chunks[:-1], chunks[-1:]]
    plan = make_plan(parts, pp_size, BATCH, uniform(min(recompute, 4 // pp_size)), replicas=range(len(parts)))

    steps = run_plan(groups, plan, BATCH, sp_size, MODEL, torch.bfloat16, dp_size=dp_size)

    errors = {
        name: float((gradient.double() - exact).norm() / exact.norm())
        for name, exact in reference().gradients.items()
        for gradient in [gradients_of(steps)[name]]
    }
    loss_error = abs(steps[0].loss / reference().loss - 1)
    assert max(errors.values()) <= MAX_GRADIENT_ERROR, errors
    assert loss_error <= MAX_LOSS_ERROR


def test_weights_moments_and_sums_of_gradients_are_fp32_and_messages_are_bf16(groups: GroupPool) -> None:
    chunks = KINDS["hybrid"]
    plan = make_plan([chunks[:-1], chunks[-1:]], 2, BATCH, replicas=[0, 1])

    ranks = groups.run(8, see_types, MODEL, 2, 2, 2, plan, BATCH)

    for types in ranks:
        assert types.parameters == {torch.float32}
        assert types.gradients == {torch.float32}
        assert types.messages == {torch.bfloat16}
        # Inside a stage after every chunk, over the replicas once a step, and the loss of the whole job.
        assert types.collectives["reduce_scatter_base"] == {torch.float32}
        assert types.collectives["allreduce"] == {torch.float32, torch.float64}
        # Parameters are gathered in the type of the computation.
        assert types.collectives["allgather_base"] == {torch.bfloat16}


def test_updates_too_small_for_bf16_are_not_lost(groups: GroupPool) -> None:
    rate, count = 1e-7, 50
    plan = make_plan([KINDS["hybrid"]], 2, BATCH)

    ranks = groups.run(2, train_with_tiny_rate, MODEL, 2, 1, plan, BATCH, rate, count)

    for rank in ranks:
        for name, before in rank.before.items():
            moved = (rank.after[name].double() - before.double()).abs()
            if name == "embedding.weight":  # rows of tokens that are not in the batch have no gradient
                moved = moved[moved.amax(1) > 0]
                assert len(moved) > 20
            # On one batch the steps of Adam point the same way and have about the length of the rate. A norm's weight
            # of 1 takes steps of fp32's resolution there, so it moves by roundings of them.
            expected = pytest.approx(rate * count, rel=0.35)
            assert moved.median().item() == expected, name
            if before.ndim == 2:
                in_bf16 = rank.after[name].bfloat16() == before.bfloat16()
                assert in_bf16.float().mean() > 0.8, name  # what a copy in bf16 would have seen of it
