"""Predicted times are compared with measured ones step by step, and stage by stage over ranks and replicas."""

import pytest

from infinipipe_contract.plan import ActionKind, ChunkId
from infinipipe_contract.simulate import Span, StageTimeline, Timeline
from infinipipe_executor.step_errors import PassSeconds, StepErrors, error_ratio, pass_seconds

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def stage(replica_index: int, stage_index: int, forward_s: float, backward_s: float) -> StageTimeline:
    chunk = ChunkId(0, 0)
    spans = (Span(F, chunk, 0.0, forward_s, 0.0), Span(B, chunk, forward_s, forward_s + backward_s, 0.0))
    return StageTimeline(replica_index, stage_index, spans, (0.0, 0.0), 0.0, 0)


def test_forward_and_backward_passes_are_added_up_apart() -> None:
    assert pass_seconds(stage(0, 0, 1.0, 2.5).spans) == PassSeconds(1.0, 2.5)


@pytest.mark.parametrize(("predicted_s", "measured_s", "expected"), [(3.0, 4.0, -0.25), (5.0, 4.0, 0.25), (5.0, 0, 0)])
def test_the_error_is_relative_to_what_was_measured(predicted_s: float, measured_s: float, expected: float) -> None:
    assert error_ratio(predicted_s, measured_s) == expected


def test_the_error_of_a_run_is_the_median_over_its_steps_without_signs() -> None:
    errors = StepErrors(pp_size=1, sp_size=1)
    for measured_s in (4.0, 2.5, 20.0):  # predicted 3.0: off by -25 %, +20 %, -85 %
        errors.add(Timeline((stage(0, 0, 1.0, 2.0),), 3.0), measured_s, [PassSeconds(1.0, 2.0)])

    assert errors.median_error_ratio == pytest.approx(0.25)


def test_the_error_of_a_long_run_is_that_of_its_last_thousand_steps() -> None:
    errors, planned = StepErrors(pp_size=1, sp_size=1), Timeline((stage(0, 0, 1.0, 2.0),), 3.0)
    for measured_s in [6.0] * 1000 + [3.0] * 600:
        errors.add(planned, measured_s, [PassSeconds(measured_s, measured_s)])

    assert errors.median_error_ratio == 0.0
    assert errors.summary() == (
        "predicted step times are off by 0.0% in the median of the last 1000 steps; passes, measured over predicted: "
        "stage 0 forward 3.00, backward 1.50"
    )


def test_passes_are_compared_stage_by_stage_as_means_over_replicas_and_ranks() -> None:
    planned = Timeline(
        (stage(0, 0, 1.0, 2.0), stage(0, 1, 1.0, 4.0), stage(1, 0, 3.0, 2.0), stage(1, 1, 1.0, 4.0)), 9.0
    )
    errors = StepErrors(pp_size=2, sp_size=2)

    # Ranks in the order replica, stage, rank of the stage.
    errors.add(
        planned,
        10.0,
        [PassSeconds(2.0, 3.0)] * 2
        + [PassSeconds(1.0, 2.0), PassSeconds(2.0, 2.0)] * 1
        + [PassSeconds(4.0, 3.0)] * 2
        + [PassSeconds(1.0, 2.0), PassSeconds(2.0, 2.0)],
    )

    assert errors.summary() == (
        "predicted step times are off by 10.0% in the median of 1 step; passes, measured over predicted: "
        "stage 0 forward 1.50, backward 1.50; stage 1 forward 1.50, backward 0.50"
    )


def test_a_run_without_a_step_has_nothing_to_say() -> None:
    assert StepErrors(1, 1).summary() is None
