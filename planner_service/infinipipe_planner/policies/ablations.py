"""Policies ``no-balance``, ``no-recompute``, ``full-recompute``: the paper's algorithm without one of its parts (V-E).

All three sweep the slice number as ``paper`` does. What they leave out is what they are named after:

- ``no-balance`` ("w/o wbc") cuts long sequences into slices of equal length and packs short ones into chunks of that
  length; grouping and recompute are the paper's.
- ``no-recompute`` ("w/o ckpt") and ``full-recompute`` ("full ckpt") chunk as the paper does and recompute no layer, or
  every one. Recompute is then no longer weighed against warm-up and cool-down, so that grouping (Eq. 13) comes down to
  the fewest pipelines that fit.
"""

import dataclasses
import functools
from collections.abc import Sequence

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.chunk_batch import ChunkChain, chunk_batch
from infinipipe_planner.chunking.fixed_size import split_fixed
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.policies.candidate import Candidate
from infinipipe_planner.policies.paper import PaperSpec, schedule_chains, sweep_paper
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder, order_pipeline
from infinipipe_planner.scheduling.recompute_problem import (
    IlpLimits,
    RecomputeProblem,
    build_recompute_problem,
    describe_shortage,
)
from infinipipe_planner.scheduling.uniform_recompute import build_uniform_pipeline


class NoRecomputeShortageError(InfeasibleBatchError):
    """A batch does not fit in memory when nothing is recomputed."""

    def __init__(self, stage_index: int, needed_bytes: float, usable_bytes: float, remedy: str) -> None:
        super().__init__(stage_index, needed_bytes, usable_bytes, remedy)
        self.args = (str(self).replace("with every layer recomputed", "without recompute"),)


class NoBalanceSpec(PaperSpec):
    """The candidate of one slice number with chunks of equal length."""

    __slots__ = ()

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:
        """Cut and pack by tokens, then group and choose recompute as the paper does; see ``CandidateSpec``."""
        chunk_tokens = -(-max(lengths_tokens) // self.slice_count)
        return schedule_chains(split_fixed(lengths_tokens, chunk_tokens), profile, limits)


class NoRecomputeSpec(PaperSpec):
    """The candidate of one slice number without recompute."""

    __slots__ = ()

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:  # noqa: ARG002  # no solver runs
        """Chunk as the paper does, recompute nothing; see ``CandidateSpec``."""
        return _build_fixed(chunk_batch(lengths_tokens, profile, self.slice_count), profile, 0)


class FullRecomputeSpec(PaperSpec):
    """The candidate of one slice number with all layers recomputed."""

    __slots__ = ()

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:  # noqa: ARG002  # no solver runs
        """Chunk as the paper does, recompute everything; see ``CandidateSpec``."""
        return _build_fixed(chunk_batch(lengths_tokens, profile, self.slice_count), profile, max(profile.stage_layers))


def _build_fixed(chains: Sequence[ChunkChain], profile: Profile, layer_count: int) -> Candidate:
    """Group chains, longest first, into the fewest pipelines that fit with that many layers recomputed everywhere."""
    costs, pp_size = CostModel(profile), profile.cluster.pp_size
    orders: list[PipelineOrder] = []
    group: list[ChunkChain] = []
    for chunk_count in sorted({len(chain) for chain in chains}, reverse=True):
        of_class = [chain for chain in chains if len(chain) == chunk_count]
        joined = order_pipeline([*group, *of_class], pp_size)
        if group and _lack(build_recompute_problem(joined, costs), layer_count) <= 0:
            orders[-1] = joined
            group += of_class
            continue
        group = of_class
        alone = order_pipeline(group, pp_size)
        _require_fit(build_recompute_problem(alone, costs), layer_count, profile)
        orders.append(alone)
    return Candidate(tuple(build_uniform_pipeline(order, layer_count, profile.stage_layers) for order in orders))


def _lack(problem: RecomputeProblem, layer_count: int) -> float:
    """Bytes that the tightest window lacks; at most 0 where all fit."""
    recompute = (layer_count,) * problem.variable_count
    return max((one.needed_bytes(recompute) - one.free_bytes for one in problem.constraints), default=0.0)


def _require_fit(problem: RecomputeProblem, layer_count: int, profile: Profile) -> None:
    if _lack(problem, layer_count) <= 0:
        return
    error = describe_shortage(dataclasses.replace(problem, layer_limit=layer_count), profile)
    if layer_count:
        raise error
    raise NoRecomputeShortageError(error.stage_index, error.needed_bytes, error.usable_bytes, error.remedy)


sweep_no_balance = functools.partial(sweep_paper, spec_type=NoBalanceSpec)
sweep_no_recompute = functools.partial(sweep_paper, spec_type=NoRecomputeSpec)
sweep_full_recompute = functools.partial(sweep_paper, spec_type=FullRecomputeSpec)
