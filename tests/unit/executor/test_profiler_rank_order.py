"""Chunks that the profiler has not seen take their measured time in the order that the measured profile predicts."""

from collections.abc import Sequence

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ChunkKind, Slice, chunk_kinds
from infinipipe_executor.model.config import ModelConfig
from support_e2e.trainer_ranks import measure_and_time
from support_executor.groups import ProcessGroup
from support_executor.plans import chunk, cut

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

LEAST_RANK_CORRELATION = 0.8
RUN_COUNT = 5

# Narrow layers and many heads: token pairs weigh, as they do in long sequences of a model of real size.
MODEL = ModelConfig(layers=2, hidden=16, heads=4, kv_heads=2, head_dim=16, ffn=16, vocab=31)
CONTEXT_TOKENS = 2048

LENGTHS_TOKENS = [3710, 80, 75, 45, *[100] * 25]
HEAD, SMALL, BESIDE_OTHERS, LARGE = cut(0, 1900, 60, 150, 1600)
CHUNKS = [  # predicted times lie a factor of about 1.5 to 4 apart; no probe has these slices
    chunk(HEAD),
    chunk(SMALL),
    chunk(BESIDE_OTHERS, *cut(2, 75), *cut(3, 45)),
    chunk(LARGE),
    chunk(*cut(1, 80)),
    chunk(*(Slice(index, 0, 100) for index in range(4, 29))),
]


def ranks(values: Sequence[float]) -> list[int]:
    """Place of every value in ascending order, from 0; all values differ."""
    ascending = sorted(values)
    return [ascending.index(value) for value in values]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation without ties: 1 for the same order, -1 for the reverse one."""
    squares = sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True))
    count = len(first)
    return 1 - 6 * squares / (count * (count**2 - 1))


@pytest.mark.timeout(90)
def test_passes_of_unseen_chunks_rank_by_time_as_the_profile_predicts() -> None:
    assert set(chunk_kinds(CHUNKS)) == set(ChunkKind)
    with ProcessGroup(1) as group:
        profile, measured_s = group.run(measure_and_time, MODEL, CONTEXT_TOKENS, CHUNKS, LENGTHS_TOKENS, RUN_COUNT)[0]

    costs = CostModel(profile)
    predicted_s = {
        ActionKind.FORWARD: [costs.forward_s(one, 0) for one in CHUNKS],
        ActionKind.BACKWARD: [costs.backward_s(one, 0, 0) for one in CHUNKS],
    }
    token_counts = [one.token_count for one in CHUNKS]
    for kind in ActionKind:
        told = f"{kind.name}: predicted {predicted_s[kind]}, measured {measured_s[kind]}"
        assert rank_correlation(predicted_s[kind], measured_s[kind]) >= LEAST_RANK_CORRELATION, told
        # The order is not that of the tokens, which any model would tell.
        assert rank_correlation(token_counts, measured_s[kind]) < LEAST_RANK_CORRELATION, told
