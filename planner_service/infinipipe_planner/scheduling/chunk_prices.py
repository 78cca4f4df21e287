"""Prices of all chunks of a pipeline on all stages: what a search asks for thousands of times, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind
from infinipipe_planner.chunking.chunk_batch import ChunkChain


@dataclass(frozen=True, slots=True)
class ChunkPrices:
    """Per stage and chunk of a pipeline, without recompute.

    Attributes:
        forward_s: Seconds of a forward pass, by stage and chunk.
        backward_s: Seconds of a backward pass, by stage and chunk.
        layers_s: Seconds of a forward pass over as many layers as an even stage has, by stage and chunk: what is
            recomputed, without the head.
        held_bytes: Bytes held from forward to backward, by stage and chunk.
        transfer_s: Seconds of a message, by chunk.
        free_bytes: Usable bytes beside the model states and what the largest chunk needs while it runs, by stage.
    """

    forward_s: tuple[tuple[float, ...], ...]
    backward_s: tuple[tuple[float, ...], ...]
    layers_s: tuple[tuple[float, ...], ...]
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

    def passes_s(even_s: Sequence[float], stage: int, gather_s: float, head: ActionKind | None) -> tuple[float, ...]:
        # ``CostModel.pass_s``, written out: a call for every chunk takes a quarter longer.
        head_s = 0.0 if head is None else costs.head_s(head, 1, stage)
        return tuple(
            max(shares[stage] * s + head_s * count, gather_s) + shares[stage] * a
            for s, a, count in zip(even_s, all2all_s, tokens, strict=True)
        )

    gather_s = profile.param_gather_s
    usable_bytes = profile.usable_memory_bytes - costs.working_bytes(max(tokens, default=0))
    return ChunkPrices(
        forward_s=tuple(passes_s(forward_s, stage, gather_s[stage], ActionKind.FORWARD) for stage in stages),
        backward_s=tuple(passes_s(backward_s, stage, 2 * gather_s[stage], ActionKind.BACKWARD) for stage in stages),
        layers_s=tuple(
            tuple(s / shares[stage] for s in passes_s(forward_s, stage, gather_s[stage], None)) for stage in stages
        ),
        held_bytes=tuple(
            tuple(per_token[stage][kept] * count for kept, count in zip(keeps_kv, tokens, strict=True))
            for stage in stages
        ),
        transfer_s=tuple(map(costs.transfer_s, tokens)),
        free_bytes=tuple(usable_bytes - m for m in profile.memory.model_state_bytes),
    )
