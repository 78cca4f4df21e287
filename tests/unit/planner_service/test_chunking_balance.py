"""Chunks of equal work: long sequences are cut one by one, short ones go where most room is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinipipe_contract.plan import ActionKind, Chunk
from infinipipe_planner.chunking.balance import BalancedChunks, Ramp, balance_chunks
from infinipipe_planner.cost_model.slice_work import SliceWork
from support_planner.batches import github_lengths
from support_planner.profiles import llama_profile

PROFILE = llama_profile()
WORK = SliceWork(PROFILE, tuple(ActionKind))


def all_chunks(chunks: BalancedChunks) -> list[Chunk]:
    groups = (chunks.ramp_up, chunks.long_chains, chunks.batched, chunks.ramp_down)
    return [chunk for group in groups for chain in group for chunk in chain]


def work_of(chunk: Chunk) -> float:
    return sum(WORK.work_s(piece.start_token, piece.length_tokens) for piece in chunk.slices)


def test_every_long_sequence_is_cut_at_equal_work() -> None:
    target_s = WORK.prefix_work_s(4096)
    chunks = balance_chunks([65_536, 40_000, 100], WORK, target_s, Ramp())

    assert [len(chain) for chain in chunks.long_chains] == sorted(map(len, chunks.long_chains), reverse=True)
    for chain in chunks.long_chains:
        shares = [WORK.work_s(piece.start_token, piece.length_tokens) for piece in (c.slices[0] for c in chain)]
        assert max(shares) == pytest.approx(min(shares), rel=0.01)
        assert max(shares) <= 1.16 * target_s


def test_short_sequences_level_the_chunks() -> None:
    lengths = github_lengths(512, 65_536)
    target_s = sum(map(WORK.prefix_work_s, lengths)) / 60
    works = [work_of(chunk) for chunk in all_chunks(balance_chunks(lengths, WORK, target_s, Ramp()))]

    assert max(works) <= 1.2 * target_s
    assert sum(works) / len(works) >= 0.85 * target_s


def test_ramps_are_lighter_in_the_asked_proportions() -> None:
    lengths = github_lengths(512, 65_536)
    target_s = sum(map(WORK.prefix_work_s, lengths)) / 60
    chunks = balance_chunks(lengths, WORK, target_s, Ramp(up=(0.3, 0.6), down=(0.8,)))

    ratios = [work_of(chunk) / target_s for chain in (*chunks.ramp_up, *chunks.ramp_down) for chunk in chain]
    assert ratios == pytest.approx([0.3, 0.6, 0.8], abs=0.1)


def test_a_limit_on_slices_is_kept() -> None:
    chunks = balance_chunks([65_536, 30_000], WORK, WORK.prefix_work_s(1000), Ramp(), max_slice_count=3)

    assert [len(chain) for chain in chunks.long_chains] == [3, 3]


@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=40),
    st.integers(1, 80),
    st.sampled_from([Ramp(), Ramp(up=(0.3, 0.5), down=(0.5,))]),
)
def test_every_token_is_in_one_chunk(lengths: list[int], chunk_count: int, ramp: Ramp) -> None:
    target_s = sum(map(WORK.prefix_work_s, lengths)) / chunk_count
    chunks = all_chunks(balance_chunks(lengths, WORK, target_s, ramp))

    tokens = sorted(
        (piece.sequence_index, piece.start_token, piece.end_token) for chunk in chunks for piece in chunk.slices
    )
    ends = dict.fromkeys(range(len(lengths)), 0)
    for sequence_index, start, end in tokens:
        assert start == ends[sequence_index] < end
        ends[sequence_index] = end
    assert ends == dict(enumerate(lengths))
    assert all(sum(piece.start_token > 0 for piece in chunk.slices) <= 1 for chunk in chunks)
