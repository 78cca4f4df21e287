"""Policy ``seq1f1b``: token-level 1F1B with chunks of a fixed size (the paper's variant of Seq1F1B, V-A).

Models: every sequence longer than a chunk is cut into slices of equal length, tails and short sequences are packed
into chunks of the same size, all in one 1F1B pipeline whose window holds the longest sequence (Eq. 7). Every chunk
recomputes the same number of layers, the fewest with which the batch fits. Sequences run longest first, which is better
than the order they come in.

Leaves out: Seq1F1B's own division of equal sequences by work (it needs all sequences to be equally long), and its
kernels. The chunk size, which its users tune by hand, is tuned here for every batch, and so is the recompute that a run
fixes once: the policy is a little better than what it models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.chunking.fixed_size import split_fixed
from infinipipe_planner.policies.candidate import Candidate, CandidateRequest, Sweep
from infinipipe_planner.policies.chunk_sizes import chunk_sizes_tokens
from infinipipe_planner.scheduling.one_f_one_b import order_pipeline
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem
from infinipipe_planner.scheduling.uniform_recompute import build_uniform_pipeline, least_uniform_recompute

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions


@dataclass(frozen=True, slots=True)
class Seq1F1BSpec:
    """The candidate of one chunk size."""

    chunk_tokens: int

    @property
    def name(self) -> str:
        """How reports call the candidate."""
        return f"{self.chunk_tokens} tokens a chunk"

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:  # noqa: ARG002  # no solver runs
        """Cut and pack, order in 1F1B, recompute as little as fits; see ``CandidateSpec``."""
        return run_1f1b(split_fixed(lengths_tokens, self.chunk_tokens), profile)


def run_1f1b(chains: Sequence[ChunkChain], profile: Profile) -> Candidate:
    """Run all chains in one 1F1B pipeline with the least uniform recompute that fits.

    Raises:
        InfeasibleBatchError: If full recompute is not enough.
    """
    order = order_pipeline(chains, profile.cluster.pp_size)
    layer_count = least_uniform_recompute(build_recompute_problem(order, CostModel(profile)), profile)
    return Candidate((build_uniform_pipeline(order, layer_count, profile.stage_layers),))


def sweep_seq1f1b(lengths_tokens: tuple[int, ...], profile: Profile, options: "PlanOptions") -> Sweep:
    """Try chunk sizes. See ``Policy``."""
    sizes = chunk_sizes_tokens(sum(lengths_tokens), profile.cluster.pp_size)
    return (yield [CandidateRequest(lengths_tokens, profile, options.limits, Seq1F1BSpec(size)) for size in sizes])
