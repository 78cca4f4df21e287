"""What a solver is asked: one batch, how to plan it, and whose plan it will be."""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.profile import Profile
from infinipipe_planner.options import PlanOptions


@dataclass(frozen=True, slots=True)
class SolveRequest:
    """One training step to plan; the same for every solver.

    Attributes:
        lengths: Tokens of every sequence of the batch, each at least 1.
        profile: Cost model of the job.
        options: How to plan.
        job: Job the plan is for; empty without one.
        generation: Generation of the job; 0 without one.
        step: Training step.
        target_token_count: Tokens with a target; None means every token but the last of each sequence.
    """

    lengths: Sequence[int]
    profile: Profile
    options: PlanOptions
    job: str = ""
    generation: int = 0
    step: int = 0
    target_token_count: int | None = None
