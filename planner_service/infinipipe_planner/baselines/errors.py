"""Errors of the baselines."""

from infinipipe_planner.errors import PlannerError


class BaselineDoesNotFitError(PlannerError):
    """A batch does not fit in memory the way a baseline would run it; the message says what is short."""
