"""What a policy is: one function from a batch and a slice number to pipelines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from infinipipe_contract.plan import Pipeline, SolveOutcome
from infinipipe_contract.profile import Profile
from infinipipe_planner.scheduling.recompute_problem import IlpLimits


@dataclass(frozen=True, slots=True)
class Candidate:
    """Pipelines for one slice number.

    Attributes:
        pipelines: In the order they run.
        outcome: How certain their recompute is, the least certain of them.
        gap_ratio: Largest gap among their recompute problems.
    """

    pipelines: tuple[Pipeline, ...]
    outcome: SolveOutcome
    gap_ratio: float


class Policy(Protocol):
    """Builds the pipelines of one candidate; the sweep over candidates and the choice by replay are not its business.

    To add one: write the function in a module of its own beside ``paper.py`` and name it in ``registry.py``.
    """

    def __call__(
        self, lengths_tokens: Sequence[int], profile: Profile, slice_count: int, limits: IlpLimits
    ) -> Candidate:
        """Build pipelines that hold every token once and fit in memory.

        Args:
            lengths_tokens: Tokens of every sequence, each at least 1.
            profile: Cost model and memory.
            slice_count: Slices of the longest sequence (paper: K), in ``[1, max(lengths_tokens)]``.
            limits: When a solver may stop.

        Raises:
            InfeasibleBatchError: If the batch does not fit in memory with this slice number.
        """
        ...
