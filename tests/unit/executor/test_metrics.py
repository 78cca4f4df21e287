"""What a step prints is counted from the plan and from what all ranks measured."""

import pytest

from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    ChunkKind,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
)
from infinipipe_executor.metrics import MeasuredStep, bubble_ratio, describe_plan, step_line

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def two_pipelines() -> ExecutionPlan:
    """Sequence 0 of 10 tokens in three slices, the last one packed with sequence 1; sequence 2 alone."""
    first = Pipeline(
        (Chunk((Slice(0, 0, 4),)), Chunk((Slice(0, 4, 4),)), Chunk((Slice(0, 8, 2), Slice(1, 0, 3)))),
        (
            (Action(F, 0, 2), Action(F, 1), Action(F, 2, 1), Action(B, 2), Action(B, 1), Action(B, 0)),
            (Action(F, 0), Action(F, 1, 1), Action(F, 2), Action(B, 2), Action(B, 1), Action(B, 0)),
        ),
    )
    second = Pipeline((Chunk((Slice(2, 0, 7),)),), ((Action(F, 0), Action(B, 0)),) * 2)
    return ExecutionPlan(
        job="j",
        generation=1,
        step=4,
        policy="paper",
        pipelines=(first, second),
        target_token_count=17,
        estimate=Estimate(2.0, 1.0, 0.25, 0.1, ()),
        report=SolveReport(SolveOutcome.OPTIMAL, 0.1, 3),
    )


def test_a_plan_is_described_by_its_tokens_kinds_slices_pipelines_and_recomputed_layers() -> None:
    shape = describe_plan(two_pipelines())

    assert shape.token_count == 20
    assert shape.chunk_count_by_kind == {ChunkKind.SPLIT: 2, ChunkKind.HYBRID: 1, ChunkKind.BATCHED: 1}
    assert shape.longest_slice_count == 3
    assert shape.pipeline_count == 2
    assert shape.recomputed_layer_count == 4


def test_a_step_is_one_line_with_everything_an_operator_asks_first() -> None:
    measured = MeasuredStep(loss=3.14159, grad_norm=0.5, makespan_s=2.5, bubble_ratio=0.3, plan_wait_s=0.04)

    assert step_line(4, 20, two_pipelines(), measured) == (
        "step  4 of 20  loss 3.1416  grad norm 0.500  tokens 20  chunks 1b/2s/1h  K 3  pipelines 2  recompute 4 layers"
        "  predicted 2.00 s  measured 2.50 s  bubble 25%/30%  plan wait 0.0 s"
    )


@pytest.mark.parametrize(
    ("busy_s", "makespan_s", "expected"),
    [([2.0, 2.0], 2.0, 0.0), ([1.0, 2.0], 2.0, 0.25), ([0.0, 0.0], 2.0, 1.0), ([0.0], 0.0, 0.0)],
)
def test_the_bubble_is_the_idle_share_of_the_step_over_all_ranks(
    busy_s: list[float], makespan_s: float, expected: float
) -> None:
    assert bubble_ratio(busy_s, makespan_s) == pytest.approx(expected)
