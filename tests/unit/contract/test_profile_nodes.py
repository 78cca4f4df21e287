"""Links inside and between nodes: an optional part of a profile."""

import dataclasses

import pytest

from infinipipe_contract.codec import profile_from_json, profile_to_json
from infinipipe_contract.errors import InvalidProfileError
from infinipipe_contract.profile import NodeLinks, check_profile, derive_node_links
from support_contract import small_profile

NODES = NodeLinks(
    devices_per_node=4,
    intra_node_bytes_per_s=160e9,
    intra_node_latency_s=2e-5,
    inter_node_bytes_per_s=50e9,
    inter_node_latency_s=3e-5,
)


def test_node_links_survive_the_profile_file() -> None:
    profile = dataclasses.replace(small_profile(), nodes=NODES)

    assert profile_from_json(profile_to_json(profile)) == profile


def test_a_profile_without_node_links_stays_without() -> None:
    profile = small_profile()

    assert profile_from_json(profile_to_json(profile)).nodes is None


def test_without_node_links_every_stage_is_a_node_whose_ranks_share_the_way_out() -> None:
    profile = small_profile(pp_size=2, sp_size=2)

    assert derive_node_links(profile) == NodeLinks(
        devices_per_node=2,
        intra_node_bytes_per_s=100.0,
        intra_node_latency_s=0.5,
        inter_node_bytes_per_s=2 * 50.0,
        inter_node_latency_s=0.25,
    )


def test_node_links_of_the_profile_win_over_derived_ones() -> None:
    assert derive_node_links(dataclasses.replace(small_profile(), nodes=NODES)) == NODES


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"devices_per_node": 0}, "nodes.devices_per_node is 0, it must be at least 1"),
        ({"devices_per_node": 3}, "nodes.devices_per_node is 3, it must be a divisor of pp_size . sp_size, which is 4"),
        ({"inter_node_bytes_per_s": 0.0}, "nodes.inter_node_bytes_per_s is 0.0, it must be at least 1"),
        ({"intra_node_bytes_per_s": float("nan")}, "nodes.intra_node_bytes_per_s is nan"),
        ({"inter_node_latency_s": -1.0}, "nodes.inter_node_latency_s is -1.0"),
    ],
)
def test_senseless_node_links_are_refused_with_key_value_and_limit(change: dict[str, float], sentence: str) -> None:
    nodes = dataclasses.replace(NODES, **change)  # type: ignore[arg-type]  # the parameters are of one type for brevity

    with pytest.raises(InvalidProfileError, match=sentence):
        check_profile(dataclasses.replace(small_profile(), nodes=nodes))


def test_an_unknown_key_of_the_node_links_is_named_with_the_nearest_one() -> None:
    text = profile_to_json(dataclasses.replace(small_profile(), nodes=NODES)).replace(
        "inter_node_latency_s", "inter_node_latencies"
    )

    with pytest.raises(InvalidProfileError, match=r"profile\.nodes: unknown key .*inter_node_latency_s"):
        profile_from_json(text)
