"""The policies by name."""

from collections.abc import Mapping
from types import MappingProxyType

from infinipipe_planner.policies.candidate import Policy
from infinipipe_planner.policies.paper import build_paper_candidate

POLICIES: Mapping[str, Policy] = MappingProxyType({"paper": build_paper_candidate})
