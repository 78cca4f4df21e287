"""List scheduling: what a free stage takes next, within memory."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, Chunk, Slice
from infinipipe_contract.profile import Profile
from infinipipe_contract.simulate import simulate
from infinipipe_planner.chunking.chunk_batch import ChunkChain
from infinipipe_planner.scheduling.chunk_prices import price_chunks
from infinipipe_planner.scheduling.list_schedule import ListRules, ListSchedule, list_schedule
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline
from support_planner.profiles import round_profile

LETTER = {ActionKind.FORWARD: "F", ActionKind.BACKWARD: "B"}


def batched(count: int, tokens: int = 4) -> list[ChunkChain]:
    return [(Chunk((Slice(index, 0, tokens),)),) for index in range(count)]


def chain(slice_count: int, tokens: int = 4) -> ChunkChain:
    return tuple(Chunk((Slice(0, tokens * index, tokens),)) for index in range(slice_count))


def schedule(chains: list[ChunkChain], profile: Profile, rules: ListRules | None = None) -> ListSchedule:
    return list_schedule(chains, price_chunks(chains, CostModel(profile)), rules or ListRules())


def picture(made: ListSchedule, stage_index: int) -> str:
    return " ".join(f"{LETTER[kind]}{index}" for kind, index in made.order.stages[stage_index])


def with_memory_for(profile: Profile, chunk_tokens: int, chunks: float) -> Profile:
    chunk_bytes = CostModel(profile).full_activation_bytes(chunk_tokens, 0, keeps_kv=False)
    memory_bytes = profile.memory.model_state_bytes[0] + chunks * chunk_bytes
    return dataclasses.replace(profile, cluster=dataclasses.replace(profile.cluster, device_memory_bytes=memory_bytes))


def test_the_last_stage_turns_every_chunk_round_at_once() -> None:
    made = schedule(batched(4), round_profile())

    assert picture(made, 1) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_the_first_stage_runs_ahead_only_while_memory_lasts() -> None:
    free = schedule(batched(6), round_profile())
    tight = schedule(batched(6), with_memory_for(round_profile(), 4, 2.5))

    assert picture(free, 0).startswith("F0 F1 F2")
    assert picture(tight, 0).startswith("F0 F1 B0 F2 B1")
    assert free.fits
    assert tight.fits


def test_a_sequence_that_needs_more_than_memory_is_scheduled_but_does_not_fit() -> None:
    made = schedule([chain(4)], with_memory_for(round_profile(), 4, 2.5))

    assert picture(made, 0) == "F0 F1 F2 F3 B3 B2 B1 B0"
    assert not made.fits


def test_a_larger_share_of_memory_admits_more_forwards() -> None:
    profile = with_memory_for(round_profile(), 4, 2.5)
    made = schedule(batched(6), profile, ListRules(memory_ratio=1.6))

    assert picture(made, 0).startswith("F0 F1 F2")
    assert not made.fits


def test_patience_waits_for_a_backward_instead_of_starting_a_forward() -> None:
    hasty = schedule(batched(6), round_profile())
    patient = schedule(batched(6), round_profile(), ListRules(patience_ratio=50.0))

    ahead = picture(hasty, 0).split().index("B0")
    assert picture(patient, 0).split().index("B0") < ahead


def test_a_starving_neighbour_is_fed_before_a_backward() -> None:
    plain = schedule(batched(8), round_profile(pp_size=3, layers=6))
    feeding = schedule(batched(8), round_profile(pp_size=3, layers=6), ListRules(feed_chunks=4))

    def most_in_flight(made: ListSchedule) -> int:
        flights, most = 0, 0
        for kind, _ in made.order.stages[0]:
            flights += 1 if kind is ActionKind.FORWARD else -1
            most = max(most, flights)
        return most

    assert most_in_flight(feeding) >= most_in_flight(plain)
    assert picture(feeding, 0) != picture(plain, 0)


@pytest.mark.parametrize("rules", [ListRules(), ListRules(memory_ratio=1.5, feed_chunks=3, patience_ratio=0.2)])
def test_the_makespan_is_that_of_the_replay(rules: ListRules) -> None:
    profile = round_profile(pp_size=4, layers=8)
    chains = [chain(3), *[(Chunk((Slice(index, 0, 2 + index),)),) for index in range(1, 9)]]
    made = schedule(chains, profile, rules)

    pipeline = build_pipeline(made.order, [0] * (len(made.order.chunks) + 3))
    assert made.makespan_s == pytest.approx(simulate([pipeline], profile).makespan_s)
