"""Prices of chunks are those of the cost model, on uneven stages and with a head, too."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import Chunk, Slice
from infinipipe_contract.profile import HeadCost, Profile
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.cost_model.slice_work import SliceWork
from infinipipe_planner.scheduling.chunk_prices import price_chunks
from support_planner.profiles import round_profile

CHAINS: list[ChunkChain] = [
    (Chunk((Slice(0, 0, 6),)), Chunk((Slice(0, 6, 3), Slice(1, 0, 2)))),
    (Chunk((Slice(2, 0, 5),)),),
]
CHUNKS = [chunk for chain in CHAINS for chunk in chain]


@pytest.fixture
def profile() -> Profile:
    return dataclasses.replace(round_profile(beta1=3.0), layer_division=(7, 1), head=HeadCost(4.0, 9.0))


def test_passes_take_what_the_cost_model_says_on_every_stage(profile: Profile) -> None:
    costs = CostModel(profile)
    prices = price_chunks(CHAINS, costs)

    for stage in range(2):
        assert prices.forward_s[stage] == pytest.approx([costs.forward_s(chunk, stage) for chunk in CHUNKS])
        assert prices.backward_s[stage] == pytest.approx([costs.backward_s(chunk, stage, 0) for chunk in CHUNKS])


def test_the_layers_that_recompute_repeats_cost_alike_on_all_stages(profile: Profile) -> None:
    costs = CostModel(profile)
    prices = price_chunks(CHAINS, costs)

    assert prices.layers_s[0] == pytest.approx(prices.layers_s[1])
    # An even stage has four of the eight layers.
    assert prices.layers_s[0] == pytest.approx([costs.recompute_s(chunk, 0, 4) for chunk in CHUNKS])


def test_balancing_counts_the_share_of_the_head_of_a_mean_stage(profile: Profile) -> None:
    headless = dataclasses.replace(profile, head=HeadCost(0.0, 0.0))

    more_s = SliceWork(profile).work_s(0, 6) - SliceWork(headless).work_s(0, 6)

    assert more_s == pytest.approx(9.0 * 6 / profile.device_count)
