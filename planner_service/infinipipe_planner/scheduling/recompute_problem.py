"""The recompute problem of one pipeline as numbers (paper, Eqs. 18 to 20 and the loops of Alg. 2)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, kept_chunks
from infinipipe_contract.profile import Profile
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder, chunk_windows, recompute_variable


@dataclass(frozen=True, slots=True)
class WindowConstraint:
    """Memory of one window of one stage (Eq. 20): ``full_bytes - sum(saved * c) <= free_bytes``.

    Whole bytes, rounded to the safe side, so that sums are exact: what holds here holds in the plan.

    Attributes:
        stage_index: 0-based stage.
        full_bytes: Activations of the window's chunks without recompute (Alg. 2: the sum of I_p[k]).
        saved_bytes: Bytes that one recomputed layer of a chunk saves, by the index of its variable (Alg. 2: F[k]).
        free_bytes: Usable bytes of a device beside its model states (Eq. 20: G - M_ms(p)) and what the largest chunk
            needs while it runs.
        layer_limit: Layers of the stage where some other stage has more: what a variable asks for beyond them saves
            nothing here. None where no stage has more.
    """

    stage_index: int
    full_bytes: float
    saved_bytes: Mapping[int, float]
    free_bytes: float
    layer_limit: int | None = None

    def needed_bytes(self, recompute: Sequence[int]) -> float:
        """Activations of the window when every variable has that many layers recomputed (Eq. 19)."""
        return self.full_bytes - sum(
            saved * self.limit_layers(recompute[index]) for index, saved in self.saved_bytes.items()
        )

    def limit_layers(self, layer_count: int) -> int:
        """Tell how many layers the stage recomputes where a variable asks for that many."""
        return layer_count if self.layer_limit is None else min(layer_count, self.layer_limit)

    def holds(self, recompute: Sequence[int]) -> bool:
        """Tell whether the window fits, in bytes and without tolerance."""
        return self.needed_bytes(recompute) <= self.free_bytes

    def least_bytes(self, layer_limit: int) -> float:
        """Activations of the window with as much recompute as helps."""
        layers = self.limit_layers(layer_limit)
        return self.full_bytes - layers * sum(max(saved, 0.0) for saved in self.saved_bytes.values())


@dataclass(frozen=True, slots=True)
class IlpLimits:
    """When a solver may stop.

    Attributes:
        gap_ratio: Distance between solution and bound, relative to the solution, at which it counts as optimal.
        node_limit: Branch-and-bound nodes; unlike seconds they stop every run at the same place.
    """

    gap_ratio: float
    node_limit: int


@dataclass(frozen=True, slots=True)
class RecomputeProblem:
    """Minimise the weighted sum of the variables within the memory of every window (Eq. 20).

    Attributes:
        weights: Cost of one layer on every diagonal; all 1 in the paper. One for each of the chunks + stages - 1
            variables (Eq. 15).
        layer_limit: Layers of the largest stage, the upper bound of every variable; a diagonal crosses all stages, and
            those with fewer layers recompute all they have.
        constraints: One a window, but for those that fit without recompute and can only shrink.
        working_bytes: What the largest chunk needs while it runs.
    """

    weights: tuple[float, ...]
    layer_limit: int
    constraints: tuple[WindowConstraint, ...]
    working_bytes: float = 0.0

    @property
    def variable_count(self) -> int:
        """Chunks + stages - 1 (Eq. 15)."""
        return len(self.weights)

    @property
    def weighs_all_alike(self) -> bool:
        """Whether every layer costs 1, as in the paper: then the cost is a whole number."""
        return all(weight == 1 for weight in self.weights)

    def cost(self, recompute: Sequence[int]) -> float:
        """Weigh recomputed layers; what the solver minimises."""
        return sum(weight * count for weight, count in zip(self.weights, recompute, strict=True))

    def find_shortage(self) -> WindowConstraint | None:
        """Find the window that lacks the most bytes with full recompute; None when all fit."""
        shortages = [
            (constraint.least_bytes(self.layer_limit) - constraint.free_bytes, -index, constraint)
            for index, constraint in enumerate(self.constraints)
        ]
        lacking_bytes, _, worst = max(shortages, default=(0.0, 0, None))
        return worst if lacking_bytes > 0 else None


def build_recompute_problem(
    order: PipelineOrder, costs: CostModel, weights: Sequence[float] | None = None
) -> RecomputeProblem:
    """Write down the problem of one pipeline (paper, Alg. 2, lines 1 to 15).

    Args:
        order: Chunks and their order.
        costs: Cost model.
        weights: Cost of one layer on every diagonal; None weighs all alike, as the paper does (Eq. 17).
    """
    profile = costs.profile
    pp_size = profile.cluster.pp_size
    kept = kept_chunks(order.chunks)
    tokens = [chunk.token_count for chunk in order.chunks]
    saved = [
        math.floor(costs.saved_bytes_per_layer(count, keeps_kv=index in kept)) for index, count in enumerate(tokens)
    ]
    always_saves = min(saved) >= 0
    working_bytes = costs.working_bytes(max(tokens))
    layer_limit = max(costs.stage_layers)
    constraints = []
    for stage_index, passes in enumerate(order.stages):
        own_limit = costs.stage_layers[stage_index] if costs.stage_layers[stage_index] < layer_limit else None
        full = [
            math.ceil(costs.full_activation_bytes(count, stage_index, keeps_kv=index in kept))
            for index, count in enumerate(tokens)
        ]
        state_bytes = profile.memory.model_state_bytes[stage_index]
        free_bytes = math.floor(profile.usable_memory_bytes - state_bytes - working_bytes)
        if always_saves and _peak_bytes(passes, full) <= free_bytes:
            continue
        for window in chunk_windows(passes):
            full_bytes = sum(full[index] for index in window)
            if full_bytes <= free_bytes and (always_saves or min(saved[index] for index in window) >= 0):
                continue
            saved_bytes = {
                recompute_variable(pp_size, stage_index, order.backward_rank[index]): saved[index] for index in window
            }
            constraints.append(WindowConstraint(stage_index, full_bytes, saved_bytes, free_bytes, own_limit))
    variable_count = len(order.chunks) + pp_size - 1
    return RecomputeProblem(tuple(weights or (1.0,) * variable_count), layer_limit, tuple(constraints), working_bytes)


def _peak_bytes(passes: Sequence[tuple[ActionKind, int]], full: Sequence[int]) -> int:
    """Most that the chunks in flight hold at any moment without recompute."""
    return max(
        itertools.accumulate(full[index] if kind is ActionKind.FORWARD else -full[index] for kind, index in passes)
    )


def describe_shortage(problem: RecomputeProblem, profile: Profile) -> InfeasibleBatchError:
    """Say what the worst window of a problem without solution lacks, and what would help."""
    worst = problem.find_shortage()
    needed_bytes = worst.least_bytes(problem.layer_limit) if worst else 0.0
    if worst is None:
        # Each window alone could be made to fit, but recompute that keeps more than it saves spoils another.
        worst = max(problem.constraints, key=lambda constraint: constraint.full_bytes - constraint.free_bytes)
        needed_bytes = worst.full_bytes
    state_bytes = profile.memory.model_state_bytes[worst.stage_index]
    remedy = "use more devices a stage (cluster.sp_size) or shorten the longest sequence (context_tokens)"
    if state_bytes >= profile.usable_memory_bytes:
        remedy = f"{state_bytes:,.0f} of them are model states: use more devices a stage (cluster.sp_size)"
    needed_bytes += state_bytes + problem.working_bytes
    return InfeasibleBatchError(worst.stage_index, needed_bytes, profile.usable_memory_bytes, remedy)


def slowest_layer_weights(order: PipelineOrder, layers_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Weigh every diagonal by its slowest chunk: the others wait for it anyway.

    Args:
        order: Chunks and their order.
        layers_s: Seconds of the same number of layers, by stage and chunk.

    Returns:
        One weight a variable; only their ratios count, the mean is 1.
    """
    pp_size = len(order.stages)
    slowest_s = [0.0] * (len(order.chunks) + pp_size - 1)
    for stage_index, of_stage in enumerate(layers_s):
        for chunk_s, rank in zip(of_stage, order.backward_rank, strict=True):
            variable = recompute_variable(pp_size, stage_index, rank)
            slowest_s[variable] = max(slowest_s[variable], chunk_s)
    mean_s = sum(slowest_s) / len(slowest_s)
    return tuple(chunk_s / mean_s for chunk_s in slowest_s)
