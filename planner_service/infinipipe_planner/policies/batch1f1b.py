"""Policy ``batch1f1b``: batch-level 1F1B with sequence packing (DAPPLE).

Models: whole sequences are packed into micro-batches of a fixed size, none is cut, and all run in one 1F1B pipeline.
Every chunk recomputes the same number of layers, the fewest with which the batch fits. A sequence longer than the
micro-batch has one of its own, so the size may well be below the context.

Leaves out: DAPPLE's choice of stages and replicas (both are given by the profile). The micro-batch size is tuned for
every batch. Does not fit where the longest sequences do not fit whole, however much is recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.fixed_size import pack_whole
from infinipipe_planner.policies.candidate import Candidate, CandidateRequest, Sweep
from infinipipe_planner.policies.chunk_sizes import chunk_sizes_tokens
from infinipipe_planner.policies.seq1f1b import run_1f1b
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions


@dataclass(frozen=True, slots=True)
class Batch1F1BSpec:
    """The candidate of one micro-batch size."""

    chunk_tokens: int

    @property
    def name(self) -> str:
        """How reports call the candidate."""
        return f"{self.chunk_tokens} tokens a micro-batch"

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:  # noqa: ARG002  # no solver runs
        """Pack, order in 1F1B, recompute as little as fits; see ``CandidateSpec``."""
        return run_1f1b(pack_whole(lengths_tokens, self.chunk_tokens), profile)


def sweep_batch1f1b(lengths_tokens: tuple[int, ...], profile: Profile, options: "PlanOptions") -> Sweep:
    """Try micro-batch sizes. See ``Policy``."""
    sizes = chunk_sizes_tokens(sum(lengths_tokens), profile.cluster.pp_size)
    return (yield [CandidateRequest(lengths_tokens, profile, options.limits, Batch1F1BSpec(size)) for size in sizes])
