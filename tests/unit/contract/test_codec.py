"""Plans and profiles survive the codec, and what does not fit is refused in a sentence."""

import dataclasses
import json

import pytest

from infinipipe.planner.v1 import plan_pb2
from infinipipe_contract.codec import (
    plan_from_json,
    plan_from_proto,
    plan_to_json,
    plan_to_proto,
    profile_from_json,
    profile_to_json,
)
from infinipipe_contract.errors import InvalidPlanError, InvalidProfileError
from infinipipe_contract.profile import HeadCost, check_profile
from infinipipe_contract.working_memory import WorkingMemory
from support_contract import small_profile, two_stage_plan


def test_a_plan_survives_the_wire_and_json() -> None:
    _, _, plan = two_stage_plan()
    wire = plan_pb2.ExecutionPlan.FromString(plan_to_proto(plan).SerializeToString())
    assert plan_from_proto(wire) == plan
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_profile_survives_json() -> None:
    profile = small_profile()
    assert profile_from_json(profile_to_json(profile)) == profile


def test_what_a_pass_needs_survives_json_and_stays_absent_where_it_is() -> None:
    plain = small_profile()
    working = WorkingMemory(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    full = dataclasses.replace(plain, memory=dataclasses.replace(plain.memory, working=working))

    assert profile_from_json(profile_to_json(full)) == full
    assert "working" not in profile_to_json(plain)
    refused = dataclasses.replace(working, context_token_bytes=-5.0)
    with pytest.raises(InvalidProfileError, match="memory.working.context_token_bytes is -5.0"):
        check_profile(dataclasses.replace(plain, memory=dataclasses.replace(plain.memory, working=refused)))


def test_layers_head_and_query_width_survive_json_and_stay_absent_where_they_are() -> None:
    plain = small_profile()
    full = dataclasses.replace(
        plain,
        model=dataclasses.replace(plain.model, query_dim=24),
        layer_division=(3, 1),
        head=HeadCost(1e-6, 2e-6),
        measured_tokens=4096,
    )

    assert profile_from_json(profile_to_json(full)) == full
    assert full.stage_layers == (3, 1)
    assert not {"stage_layers", "head", "query_dim", "measured_tokens"} & set(
        profile_to_json(plain).replace('"', " ").split()
    )
    assert plain.stage_layers == (2, 2)


def test_an_unspecified_action_kind_is_refused() -> None:
    _, _, plan = two_stage_plan()
    message = plan_to_proto(plan)
    message.pipelines[0].stages[1].actions[0].kind = plan_pb2.ACTION_KIND_UNSPECIFIED
    with pytest.raises(InvalidPlanError, match="action kind 0 of chunk 0 is unspecified"):
        plan_from_proto(message)


def test_text_that_is_no_plan_is_refused() -> None:
    with pytest.raises(InvalidPlanError, match="not a plan"):
        plan_from_json('{"pipelinez": []}')


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clusterr": {}}, "profile: unknown key 'clusterr'; did you mean 'cluster'"),
        ({"forward": {"alpa1": 1}}, r"profile\.forward: unknown key 'alpa1'; did you mean 'alpha1'"),
        ({"param_gather_s": [0.0]}, "param_gather_s is 1 entries, it must be 2"),
        ({"model": {"layers": 1}}, "model.layers is 1, it must be at least cluster.pp_size, which is 2"),
        ({"model": {"layers": 0}}, "model.layers is 0, it must be at least 1"),
        ({"model": {"layers": "four"}}, "profile: "),
        ({"cluster": {"usable_memory_ratio": 1.5}}, r"usable_memory_ratio is 1.5, it must be in \(0, 1\]"),
        ({"p2p": {"bandwidth_bytes_per_s": 0}}, "p2p.bandwidth_bytes_per_s is 0.0, it must be at least 1"),
        ({"backward": {"alpha2": -1.0}}, "backward.alpha2 is -1.0, it must be a finite number"),
        ({"memory": {"token_bytes": "Infinity"}}, "memory.token_bytes is inf, it must be a finite number"),
        ({"head": {"backward_s_per_token": -1}}, "head.backward_s_per_token is -1.0, it must be a finite number"),
        ({"model": {"query_dim": 0}}, "model.query_dim is 0, it must be at least 1"),
        ({"stage_layers": [4]}, r"stage_layers is 1 entries, it must be 2 \(one a stage\)"),
        ({"stage_layers": [4, 0]}, r"stage_layers\[1\] is 0, it must be at least 1"),
        ({"stage_layers": [4, 1]}, "the sum of stage_layers is 5, it must be model.layers, which is 4"),
    ],
)
def test_a_senseless_profile_is_refused_by_key_value_and_limit(change: dict[str, object], sentence: str) -> None:
    content = json.loads(profile_to_json(small_profile()))
    for key, value in change.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    with pytest.raises(InvalidProfileError, match=sentence):
        profile_from_json(json.dumps(content))


NOT_JSON = [
    ("{", "line 1 column 2"),
    ("[" * 200_000, "nested too deeply"),
    ('{"model": {"layers": ' + "9" * 5000 + "}}", "more digits than can be read"),
]


@pytest.mark.parametrize(("text", "sentence"), NOT_JSON)
def test_text_that_is_not_json_is_no_plan(text: str, sentence: str) -> None:
    with pytest.raises(InvalidPlanError, match=sentence):
        plan_from_json(text)


@pytest.mark.parametrize(("text", "sentence"), [*NOT_JSON, ("[]", "a JSON object is expected")])
def test_a_file_that_is_no_profile_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidProfileError, match=sentence):
        profile_from_json(text)


def test_a_missing_section_of_a_profile_is_refused() -> None:
    content = json.loads(profile_to_json(small_profile()))
    del content["model"]
    with pytest.raises(InvalidProfileError, match="model.layers is 0"):
        profile_from_json(json.dumps(content))
