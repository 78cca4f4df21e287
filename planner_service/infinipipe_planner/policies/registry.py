"""The policies by name."""

from collections.abc import Mapping
from types import MappingProxyType

from infinipipe_planner.policies.ablations import sweep_full_recompute, sweep_no_balance, sweep_no_recompute
from infinipipe_planner.policies.batch1f1b import sweep_batch1f1b
from infinipipe_planner.policies.candidate import Policy
from infinipipe_planner.policies.gpipe import sweep_gpipe
from infinipipe_planner.policies.paper import sweep_paper
from infinipipe_planner.policies.search import sweep_search
from infinipipe_planner.policies.seq1f1b import sweep_seq1f1b

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "paper": sweep_paper,
        "search": sweep_search,
        "seq1f1b": sweep_seq1f1b,
        "batch1f1b": sweep_batch1f1b,
        "gpipe": sweep_gpipe,
        "no-balance": sweep_no_balance,
        "no-recompute": sweep_no_recompute,
        "full-recompute": sweep_full_recompute,
    }
)
