"""Any number of layers over any number of stages: none is lost, and costs follow the layers of each stage."""

import dataclasses
import itertools

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.model_memory import DecoderShape, model_state_bytes, most_stage_layers, parameter_count
from infinipipe_contract.plan import ActionKind, Chunk, Slice
from infinipipe_contract.profile import HeadCost, Profile, check_profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.stages import divide_layers, divide_layers_by_cost
from support_contract import picture_pipeline, small_profile

SHAPE = DecoderShape(layers=27, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32)
CHUNK = Chunk((Slice(0, 0, 6),))


def with_layers(profile: Profile, layers: int) -> Profile:
    return dataclasses.replace(profile, model=dataclasses.replace(profile.model, layers=layers))


@pytest.mark.parametrize("pp_size", range(1, 9))
def test_no_layer_is_lost_and_stages_differ_by_one_at_most(pp_size: int) -> None:
    for layers in range(pp_size, 40):
        stages = divide_layers(layers, pp_size)
        assert len(stages) == pp_size
        assert sum(stages) == layers
        assert max(stages) - min(stages) <= 1


def test_the_stages_with_embedding_and_head_take_an_extra_layer_last() -> None:
    assert divide_layers(27, 4) == (7, 7, 7, 6)
    assert divide_layers(26, 4) == (6, 7, 7, 6)
    assert divide_layers(5, 2) == (3, 2)
    assert divide_layers(8, 4) == (2, 2, 2, 2)


@pytest.mark.parametrize("pp_size", [1, 2, 3, 4, 5])
def test_every_parameter_is_on_one_stage(pp_size: int) -> None:
    assert sum(parameter_count(SHAPE, pp_size, stage) for stage in range(pp_size)) == parameter_count(SHAPE)


def test_a_profile_of_uneven_stages_is_accepted() -> None:
    check_profile(with_layers(small_profile(pp_size=2), 5))


def test_time_and_memory_of_a_stage_follow_its_layers() -> None:
    profile = dataclasses.replace(with_layers(small_profile(pp_size=2), 5), param_gather_s=(0.0, 0.0))
    costs = CostModel(profile)

    assert costs.forward_s(CHUNK, 0) / costs.forward_s(CHUNK, 1) == pytest.approx(3 / 2)
    assert costs.backward_s(CHUNK, 0, 0) / costs.backward_s(CHUNK, 1, 0) == pytest.approx(3 / 2)
    # One layer costs the same wherever it is recomputed, and saves the same.
    assert costs.recompute_s(CHUNK, 0, 1) == pytest.approx(costs.recompute_s(CHUNK, 1, 1))
    logits_bytes = profile.memory.logits_bytes / profile.cluster.sp_size * 6
    held = [costs.full_activation_bytes(6, stage, keeps_kv=True) for stage in range(2)]
    assert held[0] / (held[1] - logits_bytes) == pytest.approx(3 / 2)


def test_the_stages_together_cost_what_even_ones_would() -> None:
    uneven, even = (CostModel(with_layers(small_profile(pp_size=4), layers)) for layers in (6, 6))
    together_s = sum(uneven.forward_s(CHUNK, stage) for stage in range(4))

    assert together_s == pytest.approx(4 * (even.compute_s(even.profile.forward, CHUNK) + even.all2all_s(6)))


def test_the_replay_prices_every_stage_by_its_layers() -> None:
    profile = with_layers(small_profile(pp_size=2), 5)
    costs = CostModel(profile)
    stages = simulate([picture_pipeline([[Slice(0, 0, 6)]], "F0r2 B0", "F0r1 B0")], profile).stages

    for stage_index, layers in ((0, 2), (1, 1)):
        forward, backward = stages[stage_index].spans
        assert forward.end_s - forward.start_s == pytest.approx(costs.forward_s(CHUNK, stage_index))
        assert backward.end_s - backward.start_s == pytest.approx(costs.backward_s(CHUNK, stage_index, layers))


def all_divisions(layers: int, pp_size: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, layers), pp_size - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, layers))) for cut in cuts]


@pytest.mark.parametrize("head_layers", [0.0, 0.3, 1.0, 1.7, 4.0, 20.0])
@pytest.mark.parametrize("limits", [None, (3, 9, 9, 9), (2, 3, 2, 9)])
@pytest.mark.parametrize("pp_size", [1, 2, 3, 4])
def test_no_division_has_a_faster_slowest_stage(
    pp_size: int, limits: tuple[int, ...] | None, head_layers: float
) -> None:
    own_limits = limits[-pp_size:] if limits is not None else None
    for layers in range(pp_size, 10):
        chosen = divide_layers_by_cost(layers, pp_size, head_layers, own_limits)

        every = all_divisions(layers, pp_size)
        fitting = [d for d in every if all(n <= limit for n, limit in zip(d, own_limits or d, strict=True))]
        assert chosen in (fitting or every)
        assert max(*chosen[:-1], chosen[-1] + head_layers, 0) == min(
            max(*division[:-1], division[-1] + head_layers, 0) for division in fitting or every
        )


def test_a_head_that_takes_no_time_divides_layers_evenly() -> None:
    for pp_size in range(1, 9):
        for layers in range(pp_size, 40):
            assert divide_layers_by_cost(layers, pp_size, 0.0) == divide_layers(layers, pp_size)


def test_a_heavy_head_takes_layers_off_the_last_stage_until_one_is_left() -> None:
    assert divide_layers_by_cost(32, 4, 1.3) == (8, 9, 8, 7)
    assert divide_layers_by_cost(32, 4, 3.0) == (9, 9, 9, 5)
    assert divide_layers_by_cost(8, 2, 40.0) == (7, 1)


def test_the_states_of_as_many_layers_as_a_stage_may_have_fit_and_those_of_one_more_do_not() -> None:
    usable_bytes = 20_000.0

    limits = most_stage_layers(SHAPE, 4, 2, usable_bytes)

    assert len(set(limits)) > 1  # the stages with the embedding and the head hold less
    for stage, limit in enumerate(limits):
        at_limit, beyond = (
            model_state_bytes(SHAPE, 4, 2, stage, stage_layers=(count,) * 4) for count in (limit, limit + 1)
        )
        assert at_limit <= usable_bytes < beyond


@pytest.fixture
def headed() -> Profile:
    """Five layers, four of them on the first stage; a head that takes 0.5 s a token forward, 2 s backward."""
    profile = with_layers(small_profile(pp_size=2), 5)
    return dataclasses.replace(profile, layer_division=(4, 1), head=HeadCost(0.5, 2.0))


def test_the_last_stage_alone_spends_the_time_of_the_head(headed: Profile) -> None:
    costs, headless = CostModel(headed), CostModel(dataclasses.replace(headed, head=HeadCost(0.0, 0.0)))

    for stage, head_tokens in ((0, 0), (1, 6 / headed.cluster.sp_size)):
        assert costs.forward_s(CHUNK, stage) == pytest.approx(headless.forward_s(CHUNK, stage) + 0.5 * head_tokens)
        assert costs.backward_s(CHUNK, stage, 0) == pytest.approx(
            headless.backward_s(CHUNK, stage, 0) + 2.0 * head_tokens
        )
    assert costs.head_s(ActionKind.FORWARD, 6, 0) == 0.0
    # Spread over all devices it is part of the ideal time.
    assert costs.ideal_s(36, 6) == pytest.approx(headless.ideal_s(36, 6) + 2.5 * 6 / headed.device_count)


def test_the_head_is_never_recomputed(headed: Profile) -> None:
    headless = dataclasses.replace(headed, head=HeadCost(0.0, 0.0))

    assert CostModel(headed).recompute_s(CHUNK, 1, 1) == CostModel(headless).recompute_s(CHUNK, 1, 1) > 0


def test_the_replay_prices_the_head_and_the_chosen_layers(headed: Profile) -> None:
    costs = CostModel(headed)
    stages = simulate([picture_pipeline([[Slice(0, 0, 6)]], "F0r3 B0", "F0r1 B0")], headed).stages

    for stage_index, layers in ((0, 3), (1, 1)):
        forward, backward = stages[stage_index].spans
        assert forward.end_s - forward.start_s == pytest.approx(costs.forward_s(CHUNK, stage_index))
        assert backward.end_s - backward.start_s == pytest.approx(costs.backward_s(CHUNK, stage_index, layers))
        assert backward.recompute_s == pytest.approx(costs.recompute_s(CHUNK, stage_index, layers))
