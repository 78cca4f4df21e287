"""Step errors: how far predicted times are from measured ones over the steps of a run, in all and stage by stage."""

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from infinipipe_contract.plan import ActionKind
from infinipipe_contract.simulate import Span, Timeline
from infinipipe_executor.pipeline.stopwatch import MeasuredSpan


class PassSeconds(NamedTuple):
    """Seconds of all forward and of all backward passes, recompute included."""

    forward_s: float
    backward_s: float


def pass_seconds(spans: Iterable[Span] | Iterable[MeasuredSpan]) -> PassSeconds:
    """Add up the passes of one stage or rank."""
    seconds = dict.fromkeys(ActionKind, 0.0)
    for span in spans:
        seconds[span.kind] += span.end_s - span.start_s
    return PassSeconds(seconds[ActionKind.FORWARD], seconds[ActionKind.BACKWARD])


def error_ratio(predicted_s: float, measured_s: float) -> float:
    """Give predicted over measured, less 1: below 0 where the step took longer than predicted; 0 without a time."""
    return predicted_s / measured_s - 1 if measured_s > 0 else 0.0


KEPT_STEPS = 1000


@dataclass
class StepErrors:
    """What was predicted and measured in the last steps of this start of a run.

    It keeps ``KEPT_STEPS`` of them, so that neither its memory nor the time of its median grows with the run.

    Attributes:
        pp_size: Stages.
        sp_size: Ranks of one stage.
    """

    pp_size: int
    sp_size: int
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    _ratios: dict[tuple[int, str], deque[float]] = field(default_factory=dict)

    def add(self, planned: Timeline, measured_s: float, of_ranks: Sequence[PassSeconds]) -> None:
        """Take a step in.

        Args:
            planned: Replay of the plan.
            measured_s: Seconds from the common start of the step to the end of its last pass.
            of_ranks: The passes of every rank, in the order of ranks.
        """
        self._errors.append(error_ratio(planned.makespan_s, measured_s))
        for stage_index in range(self.pp_size):
            predicted = [pass_seconds(stage.spans) for stage in planned.stages if stage.stage_index == stage_index]
            measured = [
                seconds for rank, seconds in enumerate(of_ranks) if rank // self.sp_size % self.pp_size == stage_index
            ]
            for column, kind in enumerate(("forward", "backward")):
                predicted_s = sum(seconds[column] for seconds in predicted) / len(predicted)
                of_kind_s = sum(seconds[column] for seconds in measured) / len(measured)
                if predicted_s > 0:
                    ratios = self._ratios.setdefault((stage_index, kind), deque(maxlen=KEPT_STEPS))
                    ratios.append(of_kind_s / predicted_s)

    @property
    def median_error_ratio(self) -> float:
        """Median over the last steps of the error without its sign; 0 before the first step."""
        return statistics.median(map(abs, self._errors)) if self._errors else 0.0

    def summary(self) -> str | None:
        """Say in one line how good the predictions were; None if no step was trained."""
        if not self._errors:
            return None
        count = len(self._errors)
        steps = "1 step" if count == 1 else f"{count} steps" if count < KEPT_STEPS else f"the last {count} steps"
        stages = [
            f"stage {stage_index} "
            + ", ".join(
                f"{kind} {statistics.median(self._ratios[stage_index, kind]):.2f}"
                for kind in ("forward", "backward")
                if (stage_index, kind) in self._ratios
            )
            for stage_index in range(self.pp_size)
        ]
        return (
            f"predicted step times are off by {self.median_error_ratio:.1%} in the median of {steps}; "
            f"passes, measured over predicted: {'; '.join(stages)}"
        )
