"""Section ``[planner]``: what is asked of the planning service."""

from typing import Annotated

from pydantic import Field

from infinipipe_executor.config.section import MAX_COUNT, Seconds, Section


class PlannerConfig(Section):
    """Section ``[planner]``.

    Attributes:
        policy: How plans are made; empty means the planner's default.
        max_slice_count: Largest slice number K that is tried; 0 means ``pp_size`` + 4.
        connect_timeout_s: Longest wait for a planner to answer at all.
        wait_timeout_s: Longest wait for one plan.
        profile: "measure" measures this machine at the start; otherwise a profile file.
    """

    policy: str = ""
    max_slice_count: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    connect_timeout_s: Seconds = 30.0
    wait_timeout_s: Seconds = 600.0
    profile: str = "measure"
