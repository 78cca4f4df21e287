"""Analytic profiles: near to reference figures for the same cluster, and right about what links and layouts change."""

import dataclasses
from typing import NamedTuple

import pytest

from infinipipe_contract.codec import profile_from_json, profile_to_json
from infinipipe_contract.hf_config import parse_hf_config
from infinipipe_contract.model_memory import DecoderShape
from infinipipe_planner.analytic.devices import DEVICES
from infinipipe_planner.analytic.profile import Hardware, HardwareError, build_profile
from support_analytic import KNOWN_MODELS

VOCAB = 128256
LLAMA_7B = DecoderShape(32, 4096, 32, 32, 128, 11008, VOCAB)
LLAMA_13B = DecoderShape(40, 5120, 40, 40, 128, 13824, VOCAB)
LLAMA_30B = DecoderShape(60, 6656, 64, 64, 104, 17920, VOCAB)
A800_CLUSTER = Hardware("a800", nodes=4, devices_per_node=8)
H100_CLUSTER = Hardware("h100", nodes=4, devices_per_node=8)


class Reference(NamedTuple):
    """Figures of 4 x 8 A800 with pp 4 and sp 8, made by others from datasheet rates and usual efficiencies."""

    shape: DecoderShape
    forward_alpha1: float
    forward_alpha2: float
    backward_alpha1: float
    backward_alpha2: float
    middle_gather_s: float
    token_bytes: float
    middle_state_bytes: float
    first_state_bytes: float


REFERENCES = {
    "7b": Reference(LLAMA_7B, 1.4564e-9, 5.8873e-5, 4.096e-9, 1.17746e-4, 0.017708, 4210688, 4.0475e9, 5.0982e9),
    "13b": Reference(LLAMA_13B, 2.2756e-9, 1.15343e-4, 6.4e-9, 2.30687e-4, 0.034693, 6594560, 7.6127e9, 8.9260e9),
    "30b": Reference(
        LLAMA_30B, 4.4373e-9, 2.91838e-4, 1.248e-8, 5.83676e-4, 0.087779, 12840960, 1.81912e10, 1.98986e10
    ),
}


@pytest.mark.parametrize("size", REFERENCES)
def test_figures_of_the_papers_cluster_are_within_a_quarter_of_reference_figures(size: str) -> None:
    reference = REFERENCES[size]

    profile = build_profile(reference.shape, A800_CLUSTER, 4, 8, model_name="llama")

    figures = [
        (profile.forward.alpha1, reference.forward_alpha1),
        (profile.forward.alpha2, reference.forward_alpha2),
        (profile.backward.alpha1, reference.backward_alpha1),
        (profile.backward.alpha2, reference.backward_alpha2),
        (profile.all2all.bandwidth_bytes_per_s, 160e9),
        (profile.p2p.bandwidth_bytes_per_s, 6.25e9),
        (profile.param_gather_s[1], reference.middle_gather_s),
        (profile.memory.token_bytes, reference.token_bytes),
        (profile.memory.model_state_bytes[1], reference.middle_state_bytes),
    ]
    assert [ours for ours, _ in figures] == pytest.approx([theirs for _, theirs in figures], rel=0.25)
    # The embedding that stays gathered throughout a pass weighs most on the smallest model.
    assert profile.memory.model_state_bytes[0] == pytest.approx(reference.first_state_bytes, rel=0.3)


def test_fixed_seconds_grow_with_the_layers() -> None:
    seven, thirty = (
        build_profile(shape, A800_CLUSTER, 4, 8, model_name="llama").forward.beta1 for shape in (LLAMA_7B, LLAMA_30B)
    )

    assert seven == pytest.approx(0.0128)
    assert thirty / seven == pytest.approx(60 / 32)


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_makes_a_profile_that_a_file_keeps(name: str) -> None:
    profile = build_profile(LLAMA_7B, Hardware(name, 2, 4), 2, 4, model_name="llama")

    assert profile_from_json(profile_to_json(profile)) == profile


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_every_known_model_makes_a_profile(name: str) -> None:
    shape = parse_hf_config(KNOWN_MODELS[name].config).shape

    profile = build_profile(shape, Hardware("h100", 1, 2), 1, 2, model_name=name)

    assert (profile.model.kv_dim, profile.model.hidden) == (shape.kv_dim, shape.hidden)


def test_the_comment_says_that_nothing_was_measured_and_names_every_efficiency() -> None:
    profile = build_profile(LLAMA_7B, A800_CLUSTER, 4, 8, model_name="llama")

    assert profile.name == "llama-a800-4x8-pp4-sp8"
    assert profile.comment.startswith("Analytic, not measured: datasheet rates of 4 x 8 a800")
    for efficiency in ("products 0.7", "0.58 forward and 0.51 backward", "memory 0.8", "node 0.8", "network 0.9"):
        assert efficiency in profile.comment


def test_a_stage_over_several_nodes_is_bound_by_the_network() -> None:
    inside, across = (build_profile(LLAMA_7B, A800_CLUSTER, *layout, model_name="m") for layout in ((4, 8), (2, 16)))

    # Half of a message leaves the node, through an eighth of 0.9 x 50 GB/s.
    assert across.all2all.bandwidth_bytes_per_s == pytest.approx(2 * 0.9 * 50e9 / 8)
    assert inside.all2all.bandwidth_bytes_per_s == pytest.approx(0.8 * 200e9)
    # All the parameters enter the node once.
    assert across.param_gather_s[0] / inside.param_gather_s[0] > 2


def test_a_fast_network_does_not_make_links_faster_than_those_inside_a_node() -> None:
    cluster = Hardware("l40s", nodes=2, devices_per_node=1)

    profile = build_profile(LLAMA_7B, cluster, 1, 2, model_name="m")

    assert profile.all2all.bandwidth_bytes_per_s == pytest.approx(0.8 * 32e9)


def test_stages_of_one_node_send_over_the_links_of_the_node() -> None:
    profile = build_profile(LLAMA_7B, Hardware("h100", 1, 8), 2, 4, model_name="m")

    assert profile.p2p.bandwidth_bytes_per_s == pytest.approx(0.8 * 450e9)


def test_links_inside_and_between_nodes_are_told_apart() -> None:
    profile = build_profile(LLAMA_7B, A800_CLUSTER, 4, 8, model_name="m")

    assert profile.nodes is not None
    assert profile.nodes.devices_per_node == 8
    assert profile.nodes.intra_node_bytes_per_s == pytest.approx(0.8 * 200e9)
    assert profile.nodes.inter_node_bytes_per_s == pytest.approx(0.9 * 50e9)


def test_one_rank_gathers_nothing() -> None:
    profile = build_profile(LLAMA_7B, Hardware("h100", 1, 8), 8, 1, model_name="m")

    assert set(profile.param_gather_s) == {0.0}


def test_key_heads_fewer_than_ranks_are_sent_and_held_by_each() -> None:
    grouped = dataclasses.replace(LLAMA_7B, kv_heads=4)

    profile = build_profile(grouped, H100_CLUSTER, 4, 8, model_name="m")

    assert profile.model.kv_dim == 8 * 128


def test_tied_embeddings_save_state_only_where_one_stage_holds_both() -> None:
    tied = dataclasses.replace(LLAMA_7B, ties_embeddings=True)
    embedding_bytes = 16 * VOCAB * 4096 / 8

    def states(shape: DecoderShape, pp_size: int) -> tuple[float, ...]:
        return build_profile(shape, Hardware("h100", pp_size, 8), pp_size, 8, model_name="m").memory.model_state_bytes

    assert states(LLAMA_7B, 1)[0] - states(tied, 1)[0] == pytest.approx(embedding_bytes + 2 * VOCAB * 4096)
    assert states(LLAMA_7B, 2) == states(tied, 2)


@pytest.mark.parametrize(
    ("pp_size", "sp_size", "sentence"),
    [
        (4, 4, "pp_size 4 x sp_size 4 is 16 devices, the cluster has 24"),
        (2, 12, "32 query heads cannot be divided among sp_size 12 ranks"),
    ],
)
def test_a_layout_that_does_not_go_is_refused_with_the_sizes(pp_size: int, sp_size: int, sentence: str) -> None:
    with pytest.raises(HardwareError, match=sentence):
        build_profile(LLAMA_7B, Hardware("h100", 4, 6), pp_size, sp_size, model_name="m")


def test_ranks_that_straddle_nodes_are_refused() -> None:
    with pytest.raises(HardwareError, match="sp_size 4 neither divides the 6 devices of a node nor fills whole nodes"):
        build_profile(dataclasses.replace(LLAMA_7B, layers=30), Hardware("h100", 4, 6), 6, 4, model_name="m")
