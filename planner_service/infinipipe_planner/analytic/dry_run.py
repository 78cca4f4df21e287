"""A dry run: plan a batch under every layout of a model on a cluster, before anybody waits for that cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_planner.analytic.profile import Hardware, build_profile, layout_problem
from infinipipe_planner.errors import InfeasibleBatchError


class Layout(NamedTuple):
    """Stages, and ranks of one stage."""

    pp_size: int
    sp_size: int


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """What a layout is worth for a batch: a plan, or why there is none."""

    layout: Layout
    outcome: ExecutionPlan | InfeasibleBatchError


def legal_layouts(shape: DecoderShape, hardware: Hardware) -> list[Layout]:
    """List the layouts that a model and a cluster allow, fewest stages first."""
    layouts = [
        Layout(pp_size, hardware.device_count // pp_size)
        for pp_size in range(1, min(shape.layers, hardware.device_count) + 1)
    ]
    return [layout for layout in layouts if layout_problem(shape, hardware, *layout) is None]


def try_layout(
    shape: DecoderShape,
    hardware: Hardware,
    layout: Layout,
    solve: Callable[[Profile], ExecutionPlan],
    *,
    attended_tokens: float,
    shards_gradients: bool = True,
) -> LayoutResult:
    """Plan under one layout.

    Args:
        shape: Sizes of the model.
        hardware: The cluster.
        layout: One of ``legal_layouts``.
        solve: Plans the batch under a profile; ``InfeasibleBatchError`` is an answer, others go on to the caller.
        attended_tokens: Tokens that a token of the batch attends to in the mean; the stages are divided for it.
        shards_gradients: See ``build_profile``.
    """
    profile = build_profile(
        shape,
        hardware,
        *layout,
        model_name="dry-run",
        attended_tokens=attended_tokens,
        shards_gradients=shards_gradients,
    )
    try:
        return LayoutResult(layout, solve(profile))
    except InfeasibleBatchError as error:
        return LayoutResult(layout, error)


def fastest(results: Sequence[LayoutResult]) -> Layout | None:
    """Find the layout with the shortest step; None if nothing fits."""
    steps_s = {
        result.layout: result.outcome.estimate.makespan_s
        for result in results
        if isinstance(result.outcome, ExecutionPlan)
    }
    return min(steps_s, key=steps_s.__getitem__, default=None)
