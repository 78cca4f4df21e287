"""Errors of the planner.

PlannerError                  anything below
  InvalidLengthsError         lengths of a batch that cannot be planned
  InvalidOptionsError         options of a solve that make no sense
  InfeasibleBatchError        a batch that cannot fit in memory, whatever is recomputed
  SolverTimeoutError          a solve took longer than the service allows and was stopped
  SolverLostError             solver processes died under one candidate more than once, or Ray is gone
    SolverStoppedError        the solver was closed, or nobody wants the batch any longer
"""


class PlannerError(Exception):
    """Base of every error raised by the planner."""


class InvalidLengthsError(PlannerError):
    """Lengths of a batch cannot be planned; the message names the value, its index and the limit."""


class InvalidOptionsError(PlannerError):
    """Options of a solve make no sense; the message names the option, the value and what is allowed."""


class InfeasibleBatchError(PlannerError):
    """A batch does not fit in memory even when every layer is recomputed.

    Attributes:
        stage_index: 0-based stage that is short of memory.
        needed_bytes: Least bytes that one device of the stage needs.
        usable_bytes: Bytes that a plan may fill there.
        remedy: What would help, with the name of the knob.
    """

    def __init__(self, stage_index: int, needed_bytes: float, usable_bytes: float, remedy: str) -> None:
        self.stage_index = stage_index
        self.needed_bytes = needed_bytes
        self.usable_bytes = usable_bytes
        self.remedy = remedy
        super().__init__(
            f"the batch does not fit in memory: stage {stage_index} needs {needed_bytes:,.0f} bytes a device "
            f"with every layer recomputed, {usable_bytes:,.0f} are usable; {remedy}"
        )

    def __reduce__(self) -> tuple[type["InfeasibleBatchError"], tuple[int, float, float, str]]:
        """Rebuild from the four arguments: errors cross process boundaries."""
        return type(self), (self.stage_index, self.needed_bytes, self.usable_bytes, self.remedy)


class SolverTimeoutError(PlannerError):
    """A solve took longer than the service allows and was stopped; raised in the service's process only."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"the solve was stopped after {limit_s:g} s (--max-solve-s of the planner); "
            "a smaller node_limit, max_slice_count or batch takes less"
        )


class SolverLostError(PlannerError):
    """Solver processes died under the same candidate more than once, or Ray is gone; the batch itself may be fine."""


class SolverStoppedError(SolverLostError):
    """The solver was closed, or nobody wants the batch any longer: there is nobody to plan for."""
