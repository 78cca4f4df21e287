"""Prices of all chunks of a pipeline on all stages: what a search asks for thousands of times, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_planner.chunking.chunk_batch import ChunkChain


@dataclass(frozen=True, slots=True)
class ChunkPrices:
    """Per stage and chunk of a pipeline, without recompute.

    Attributes:
        forward_s: Seconds of a forward pass, by stage and chunk.
        backward_s: Seconds of a backward pass, by stage and chunk.
        held_bytes: Bytes held from forward to backward, by stage and chunk.
        transfer_s: Seconds of a message, by chunk.
        free_bytes: Usable bytes beside the model states, by stage.
    """

    forward_s: tuple[tuple[float, ...], ...]
    backward_s: tuple[tuple[float, ...], ...]
    held_bytes: tuple[tuple[float, ...], ...]
    transfer_s: tuple[float, ...]
    free_bytes: tuple[float, ...]


def price_chunks(chains: Sequence[ChunkChain], costs: CostModel) -> ChunkPrices:
    """Price the chunks of all chains, in order."""
    profile = costs.profile
    chunks = [chunk for chain in chains for chunk in chain]
    keeps_kv = [position < len(chain) - 1 for chain in chains for position in range(len(chain))]
    tokens = [chunk.token_count for chunk in chunks]
    all2all_s = [costs.all2all_s(count) for count in tokens]
    forward_s = [costs.compute_s(profile.forward, chunk) for chunk in chunks]
    backward_s = [costs.compute_s(profile.backward, chunk) for chunk in chunks]
    stages, shares = range(profile.cluster.pp_size), costs.stage_shares
    per_token = [[costs.full_activation_bytes(1, stage, keeps_kv=kept) for kept in (False, True)] for stage in stages]
    return ChunkPrices(
        forward_s=tuple(
            tuple(
                max(shares[stage] * s, profile.param_gather_s[stage]) + shares[stage] * a
                for s, a in zip(forward_s, all2all_s, strict=True)
            )
            for stage in stages
        ),
        backward_s=tuple(
            tuple(
                max(shares[stage] * s, 2 * profile.param_gather_s[stage]) + shares[stage] * a
                for s, a in zip(backward_s, all2all_s, strict=True)
            )
            for stage in stages
        ),
        held_bytes=tuple(
            tuple(per_token[stage][kept] * count for kept, count in zip(keeps_kv, tokens, strict=True))
            for stage in stages
        ),
        transfer_s=tuple(map(costs.transfer_s, tokens)),
        free_bytes=tuple(profile.usable_memory_bytes - m for m in profile.memory.model_state_bytes),
    )
