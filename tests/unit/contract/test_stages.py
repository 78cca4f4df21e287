"""Any number of layers over any number of stages: none is lost, and costs follow the layers of each stage."""

import dataclasses

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.model_memory import DecoderShape, parameter_count
from infinipipe_contract.plan import Chunk, Slice
from infinipipe_contract.profile import Profile, check_profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.stages import divide_layers
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
