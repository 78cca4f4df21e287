"""Policy ``paper``: the algorithm of the paper as printed; where it departs, docs/differences.md says why."""

from collections.abc import Sequence

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import SolveOutcome
from infinipipe_contract.profile import Profile
from infinipipe_planner.chunking.chunk_batch import chunk_batch
from infinipipe_planner.policies.candidate import Candidate
from infinipipe_planner.scheduling.grouping import group_chains
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline
from infinipipe_planner.scheduling.recompute_problem import IlpLimits

_LEAST_CERTAIN_LAST = (SolveOutcome.OPTIMAL, SolveOutcome.BEST_FOUND, SolveOutcome.FALLBACK)


def build_paper_candidate(
    lengths_tokens: Sequence[int], profile: Profile, slice_count: int, limits: IlpLimits
) -> Candidate:
    """Chunk (Alg. 1), group (Eq. 14), choose recompute (Alg. 2) and order in 1F1B; see ``Policy``."""
    chains = chunk_batch(lengths_tokens, profile, slice_count)
    scheduled = group_chains(chains, CostModel(profile), limits)
    solutions = [pipeline.recompute for pipeline in scheduled]
    return Candidate(
        pipelines=tuple(build_pipeline(one.order, one.recompute.layer_counts) for one in scheduled),
        outcome=max((solution.outcome for solution in solutions), key=_LEAST_CERTAIN_LAST.index),
        gap_ratio=max(solution.gap_ratio for solution in solutions),
    )
