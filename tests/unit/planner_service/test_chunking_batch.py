"""From lengths to chains of chunks."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ChunkKind, chunk_kinds
from infinipipe_planner.chunking.chunk_batch import chunk_batch
from infinipipe_planner.chunking.slice_plan import split_slice_plan
from infinipipe_planner.cost_model.slice_work import SliceWork
from infinipipe_planner.cost_model.token_threshold import token_capacity, token_threshold
from support_planner.batches import common_crawl_lengths, github_lengths
from support_planner.profiles import llama_profile


def test_a_skewed_batch_makes_all_three_kinds_of_chunk() -> None:
    chains = chunk_batch(github_lengths(128, 65_536), llama_profile(), 4)

    kinds = {kind for chain in chains for kind in chunk_kinds(chain)}

    assert kinds == set(ChunkKind)


@pytest.mark.parametrize("slice_count", [1, 2, 5, 8])
def test_a_chain_is_one_sequence_in_token_order_or_one_batched_chunk(slice_count: int) -> None:
    for chain in chunk_batch(common_crawl_lengths(64, 32_768), llama_profile(), slice_count):
        with_context = [piece for chunk in chain for piece in chunk.slices if piece.start_token]
        assert len({piece.sequence_index for piece in with_context}) <= 1
        assert [piece.start_token for piece in with_context] == sorted(piece.start_token for piece in with_context)
        assert len(with_context) == len(chain) - 1
        assert all(len(chunk.slices) == 1 for chunk in chain[:-1])


@pytest.mark.parametrize("slice_count", [1, 4, 8])
def test_no_packed_chunk_passes_the_token_threshold(slice_count: int) -> None:
    profile = llama_profile(device_memory_bytes=30e9)
    lengths = github_lengths(256, 32_768)

    chunks = [chunk for chain in chunk_batch(lengths, profile, slice_count) for chunk in chain]

    assert max(c.token_count for c in chunks if len(c.slices) > 1) <= token_threshold(profile, slice_count)


@pytest.mark.parametrize("slice_count", [1, 4, 8])
def test_the_widest_window_of_full_packed_chunks_fits_without_recompute(slice_count: int) -> None:
    profile = llama_profile()
    tokens = token_threshold(profile, slice_count)
    costs = CostModel(profile)

    for stage_index in range(4):
        window_tokens = (3 - stage_index + slice_count) * tokens
        held_bytes = costs.full_activation_bytes(window_tokens, stage_index, keeps_kv=False)
        assert profile.memory.model_state_bytes[stage_index] + held_bytes <= profile.usable_memory_bytes


def test_a_cluster_without_room_for_activations_holds_no_token() -> None:
    profile = llama_profile(device_memory_bytes=1e9)

    assert token_capacity(profile) == 0
    assert token_threshold(profile, 1) == 1


def test_every_long_sequence_shares_the_cuts_of_the_longest() -> None:
    profile = llama_profile()
    lengths = [60_000, 30_000, 50_000]
    slice_plan = split_slice_plan(60_000, 6, SliceWork(profile))

    chains = chunk_batch(lengths, profile, 6)

    for chain in chains:
        full_slices = [chunk.slices[0].length_tokens for chunk in chain[:-1]]
        assert full_slices == list(slice_plan[: len(full_slices)])
