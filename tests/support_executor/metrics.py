"""A plan and what was measured when it ran, for tests of metrics."""

from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
)
from infinipipe_executor.metrics import MeasuredStep

F, B = ActionKind.FORWARD, ActionKind.BACKWARD

MEASURED = MeasuredStep(
    loss=3.14159,
    z_loss=0.0,
    grad_norm=0.5,
    makespan_s=2.5,
    bubble_ratio=0.3,
    plan_wait_s=0.04,
    step_s=4.0,
    peak_bytes=2e6,
    learning_rate=1e-3,
    device_flops=6e9,
    device_peak_flops=None,
    median_error_ratio=0.125,
)


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
