"""Options of a solve, the same for every policy."""

import math
from dataclasses import dataclass

from infinipipe_contract.names import unknown
from infinipipe_planner.errors import InvalidOptionsError
from infinipipe_planner.policies.registry import POLICIES
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

DEFAULT_POLICY = "search"
"""The policy that wins on every setting of the benchmark, see docs/planner.md."""

DEFAULT_GAP_RATIO = 0.02
"""Optimality gap of the paper's solver (V-F)."""

DEFAULT_NODE_LIMIT = 20
"""Branch-and-bound nodes of one recompute problem. The root node does nearly all the work: 200 nodes take four times as
long and gain less than 1 % of the objective."""

MAX_SLICE_COUNT = 1_024
MAX_NODE_LIMIT = 100_000
MAX_BUDGET_S = 3_600.0
"""What a caller may ask of the solvers at most."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan.

    Attributes:
        policy: Name of the policy.
        max_slice_count: Largest slice number K to try; 0 means pp_size + 4 (paper, III-B), and more if nothing fits.
        gap_ratio: Gap at which a recompute problem counts as solved, in [0, 1); 0 means ``DEFAULT_GAP_RATIO``.
        node_limit: Nodes after which a recompute problem stops; 0 means ``DEFAULT_NODE_LIMIT``.
        budget_s: Wall-clock seconds for the trials of policy ``search``, at least 0; 0 means a number of trials that
            follows from the batch, so that equal requests give equal plans.
    """

    policy: str = DEFAULT_POLICY
    max_slice_count: int = 0
    gap_ratio: float = 0.0
    node_limit: int = 0
    budget_s: float = 0.0

    @property
    def limits(self) -> IlpLimits:
        """When a solver may stop."""
        return IlpLimits(self.gap_ratio or DEFAULT_GAP_RATIO, self.node_limit or DEFAULT_NODE_LIMIT)


def check_options(options: PlanOptions) -> None:
    """Refuse options that make no sense.

    Raises:
        InvalidOptionsError: With the option, its value and what is allowed.
    """
    if options.policy not in POLICIES:
        raise InvalidOptionsError(unknown("policy", options.policy, POLICIES))
    for name, count, most in (
        ("max_slice_count", options.max_slice_count, MAX_SLICE_COUNT),
        ("node_limit", options.node_limit, MAX_NODE_LIMIT),
    ):
        if not 0 <= count <= most:
            raise InvalidOptionsError(f"{name} is {count}, it must be from 0 to {most} (0 means the default)")
    if not 0 <= options.budget_s <= MAX_BUDGET_S:
        raise InvalidOptionsError(f"budget_s is {options.budget_s}, it must be from 0 to {MAX_BUDGET_S:g}")
    if not (math.isfinite(options.gap_ratio) and 0 <= options.gap_ratio < 1):
        raise InvalidOptionsError(f"gap_ratio is {options.gap_ratio}, it must be in [0, 1) (0 means the default)")
