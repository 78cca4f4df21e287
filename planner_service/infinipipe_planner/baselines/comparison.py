"""All methods side by side on one batch: policies, which give plans, and baselines, which are cost models only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from infinipipe_contract.names import unknown
from infinipipe_contract.profile import Profile
from infinipipe_planner.baselines.breakdown import Breakdown, break_down_plan
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.flexsp import estimate_flexsp
from infinipipe_planner.baselines.megatron import estimate_megatron
from infinipipe_planner.baselines.ulysses import estimate_ulysses
from infinipipe_planner.errors import InfeasibleBatchError, InvalidOptionsError
from infinipipe_planner.lengths import check_lengths
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.policies.registry import POLICIES
from infinipipe_planner.solve import solve_plan

BASELINES: Mapping[str, Callable[[Sequence[int], Profile], Breakdown]] = MappingProxyType(
    {"ulysses": estimate_ulysses, "flexsp": estimate_flexsp, "megatron": estimate_megatron}
)
"""Cost models without a pipeline by name."""

METHODS: tuple[str, ...] = (*POLICIES, *BASELINES)
"""Everything that can be compared."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method makes of a batch: exactly one of ``breakdown`` and ``shortage`` is set.

    Attributes:
        method: Name of the policy or the baseline.
        breakdown: Where the time goes.
        shortage: Why the batch does not fit in memory this way, or the method not the cluster.
    """

    method: str
    breakdown: Breakdown | None = None
    shortage: str = ""


def check_methods(methods: Sequence[str]) -> None:
    """Refuse names that are not methods, and repetitions.

    Raises:
        InvalidOptionsError: With the name and the nearest known one.
    """
    for method in methods:
        if method not in METHODS:
            raise InvalidOptionsError(unknown("policy", method, METHODS))
    if not methods:
        raise InvalidOptionsError(f"no policies to compare; known are {', '.join(METHODS)}")


def compare_methods(
    lengths_tokens: Sequence[int],
    profile: Profile,
    methods: Sequence[str],
    on_start: Callable[[str], None],
) -> list[Outcome]:
    """Plan or estimate one batch with every method.

    Args:
        lengths_tokens: Tokens of every sequence, each at least 1.
        profile: Cost model, the same for all.
        methods: Names out of ``METHODS``.
        on_start: Called with the name of a method before its turn.

    Raises:
        InvalidLengthsError: If the lengths cannot be planned.
        InvalidOptionsError: If a name is unknown.
    """
    check_methods(methods)
    check_lengths(lengths_tokens)
    outcomes = []
    for method in methods:
        on_start(method)
        outcomes.append(run_method(method, lengths_tokens, profile))
    return outcomes


def run_method(method: str, lengths_tokens: Sequence[int], profile: Profile) -> Outcome:
    """Plan or estimate one batch with one method out of ``METHODS``."""
    try:
        if method in BASELINES:
            if profile.cluster.dp_size > 1:
                reason = f"its cost model is of one replica, the profile has cluster.dp_size {profile.cluster.dp_size}"
                return Outcome(method, shortage=reason)
            return Outcome(method, BASELINES[method](lengths_tokens, profile))
        plan = solve_plan(lengths_tokens, profile, PlanOptions(policy=method))
        return Outcome(method, break_down_plan(plan, profile))
    except (InfeasibleBatchError, BaselineDoesNotFitError) as error:
        return Outcome(method, shortage=str(error))
