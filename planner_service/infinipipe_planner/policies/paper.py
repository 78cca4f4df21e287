"""Policy ``paper``: the algorithm of the paper as printed; where it departs, docs/differences.md says why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.chunk_batch import ChunkChain, chunk_batch
from infinipipe_planner.errors import InfeasibleBatchError
from infinipipe_planner.policies.candidate import (
    Candidate,
    CandidateRequest,
    CandidateResult,
    Sweep,
    least_shortage,
)
from infinipipe_planner.scheduling.grouping import group_chains
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline
from infinipipe_planner.scheduling.recompute import least_certain
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions

_WIDEST_SLICE_COUNT = 256
"""Largest K tried when nothing fits: beyond it the chunks in flight hold hardly more than the longest sequence."""


@dataclass(frozen=True, slots=True)
class PaperSpec:
    """The candidate of one slice number (paper: K), in ``[1, max(lengths_tokens)]``."""

    slice_count: int

    @property
    def name(self) -> str:
        """How reports call the candidate."""
        return f"K={self.slice_count}"

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:
        """Chunk (Alg. 1), group (Eq. 14), choose recompute (Alg. 2) and order in 1F1B; see ``CandidateSpec``."""
        return schedule_chains(chunk_batch(lengths_tokens, profile, self.slice_count), profile, limits)


def schedule_chains(chains: Sequence[ChunkChain], profile: Profile, limits: IlpLimits) -> Candidate:
    """Group (Eq. 14), choose recompute (Alg. 2) and order in 1F1B.

    Raises:
        InfeasibleBatchError: If the chunks do not fit in memory.
    """
    scheduled = group_chains(chains, CostModel(profile), limits)
    return Candidate(
        pipelines=tuple(
            build_pipeline(one.order, one.recompute.layer_counts, profile.stage_layers) for one in scheduled
        ),
        outcome=least_certain(one.recompute.outcome for one in scheduled),
        gap_ratio=max(one.recompute.gap_ratio for one in scheduled),
    )


def sweep_paper(
    lengths_tokens: tuple[int, ...],
    profile: Profile,
    options: "PlanOptions",
    *,
    spec_type: type[PaperSpec] = PaperSpec,
) -> Sweep:
    """Try K in [1, pp_size + 4] (paper, III-B); if nothing fits, double K until something does.

    Args:
        lengths_tokens: See ``Policy``.
        profile: See ``Policy``.
        options: See ``Policy``.
        spec_type: What builds the candidate of one K.

    Raises:
        InfeasibleBatchError: If nothing fits and a larger K, which the options forbid, might.
    """
    limits, longest = options.limits, max(lengths_tokens)
    last = min(options.max_slice_count or profile.cluster.pp_size + 4, longest)
    results = yield [
        CandidateRequest(lengths_tokens, profile, limits, spec_type(count)) for count in range(1, last + 1)
    ]
    widest = min(longest, _WIDEST_SLICE_COUNT) if options.max_slice_count == 0 else last
    while last < widest and all(result.candidate is None for result in results):
        last = min(2 * last, widest)
        results += yield [CandidateRequest(lengths_tokens, profile, limits, spec_type(last))]
    if all(result.candidate is None for result in results):
        _blame_limit_on_slices(results, longest, options)
    return results


def _blame_limit_on_slices(results: Sequence[CandidateResult], longest_tokens: int, options: "PlanOptions") -> None:
    """Name the limit on K as the knob where the largest K comes closest to fitting.

    Raises:
        InfeasibleBatchError: If it does.
    """
    closest = least_shortage(results)
    assert isinstance(closest.spec, PaperSpec)
    assert closest.shortage is not None
    if closest.spec.slice_count == options.max_slice_count < longest_tokens:
        short = closest.shortage
        remedy = f"allow more slices (max_slice_count is {options.max_slice_count}), or {short.remedy}"
        raise InfeasibleBatchError(short.stage_index, short.needed_bytes, short.usable_bytes, remedy)
