"""The policies by name."""

from collections.abc import Mapping
from types import MappingProxyType

from infinipipe_planner.policies.candidate import Policy
from infinipipe_planner.policies.paper import sweep_paper
from infinipipe_planner.policies.search import sweep_search

POLICIES: Mapping[str, Policy] = MappingProxyType({"paper": sweep_paper, "search": sweep_search})
