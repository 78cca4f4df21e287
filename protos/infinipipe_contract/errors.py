"""Errors of the contract.

ContractError                 anything below
  InvalidProfileError         a profile that makes no sense
  InvalidPlanError            a plan that breaks a rule; holds every broken rule
  ModelConfigError            a model's configuration that is unreadable or not supported
  JsonTextError               a text that is not JSON (in json_text.py)
"""

from collections.abc import Sequence


class ContractError(Exception):
    """Base of every error raised by the contract."""


class InvalidProfileError(ContractError):
    """A profile has a missing, unknown or senseless value; the message names the key, the value and the limit."""


class ModelConfigError(ContractError):
    """A model's configuration cannot be read or describes a model that is not supported; one sentence says why."""


class InvalidPlanError(ContractError):
    """A plan breaks at least one rule.

    Attributes:
        broken: One sentence a broken rule.
    """

    def __init__(self, broken: Sequence[str]) -> None:
        self.broken = tuple(broken)
        shown = "; ".join(self.broken[:5])
        rest = len(self.broken) - 5
        super().__init__(f"invalid plan: {shown}" + (f" (and {rest} more)" if rest > 0 else ""))


def first_line(error: BaseException) -> str:
    """Say in one line what happened: the first one of the message, or the kind of an error that has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
