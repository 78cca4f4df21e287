"""Policy ``gpipe``: all forwards, then all backwards (GPipe), with sequence packing.

Models: whole sequences are packed into micro-batches of a fixed size. The micro-batches are dealt out to one or more
flushes, heaviest first; a flush runs all its forwards, then its backwards in reverse. A flush holds the activations of
all its micro-batches at once, so there is more than one where they do not fit. Every chunk recomputes the same number
of layers, the fewest with which the batch fits (GPipe itself recomputes everything).

Leaves out: what GPipe does about batch normalisation. Micro-batch size and number of flushes are tuned for every batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, Chunk
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.fixed_size import pack_whole
from infinipipe_planner.policies.candidate import Candidate, CandidateRequest, Sweep
from infinipipe_planner.policies.chunk_sizes import chunk_sizes_tokens
from infinipipe_planner.scheduling.one_f_one_b import PipelineOrder
from infinipipe_planner.scheduling.recompute_problem import IlpLimits, build_recompute_problem
from infinipipe_planner.scheduling.uniform_recompute import build_uniform_pipeline, least_uniform_recompute

if TYPE_CHECKING:
    from infinipipe_planner.options import PlanOptions

_FLUSH_COUNTS = (1, 2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class GPipeSpec:
    """The candidate of one micro-batch size and number of flushes."""

    chunk_tokens: int
    flush_count: int

    @property
    def name(self) -> str:
        """How reports call the candidate."""
        return f"{self.chunk_tokens} tokens a micro-batch, flushes={self.flush_count}"

    def build(self, lengths_tokens: Sequence[int], profile: Profile, limits: IlpLimits) -> Candidate:  # noqa: ARG002  # no solver runs
        """Pack, deal out to flushes, recompute as little as fits; see ``CandidateSpec``."""
        costs = CostModel(profile)
        chunks = [chunk for chain in pack_whole(lengths_tokens, self.chunk_tokens) for chunk in chain]
        chunks.sort(key=lambda chunk: -chunk.token_count)
        # Fewer micro-batches than flushes leave some flushes empty.
        flushes = [part for first in range(self.flush_count) if (part := chunks[first :: self.flush_count])]
        orders = [order_flush(flush, profile.cluster.pp_size) for flush in flushes]
        layer_count = max(least_uniform_recompute(build_recompute_problem(order, costs), profile) for order in orders)
        return Candidate(tuple(build_uniform_pipeline(order, layer_count, costs.stage_layers) for order in orders))


def order_flush(chunks: Sequence[Chunk], pp_size: int) -> PipelineOrder:
    """Order the micro-batches of one flush.

    ::

        stage 0:  F0 F1 F2          B2    B1    B0
        stage 1:     F0 F1 F2 B2    B1    B0
    """
    forwards = [(ActionKind.FORWARD, index) for index in range(len(chunks))]
    backward_order = tuple(reversed(range(len(chunks))))
    passes = (*forwards, *((ActionKind.BACKWARD, index) for index in backward_order))
    return PipelineOrder(tuple(chunks), backward_order, (passes,) * pp_size)


def sweep_gpipe(lengths_tokens: tuple[int, ...], profile: Profile, options: "PlanOptions") -> Sweep:
    """Try micro-batch sizes, every second of those of 1F1B, each with several numbers of flushes. See ``Policy``."""
    sizes = chunk_sizes_tokens(sum(lengths_tokens), profile.cluster.pp_size)[::2]
    specs = [GPipeSpec(size, flush_count) for size in sizes for flush_count in _FLUSH_COUNTS]
    return (yield [CandidateRequest(lengths_tokens, profile, options.limits, spec) for spec in specs])
