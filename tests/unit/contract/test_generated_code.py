"""Generated code loads wherever the pins allow: with their oldest protobuf, beside what else brings protobuf."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATED = sorted((ROOT / "protos" / "infinipipe" / "planner" / "v1").glob("*_pb2.py"))
NEIGHBOURS = ("ray", "tensorboard.compat.proto.event_pb2", "wandb.proto.wandb_internal_pb2")

ROUND_TRIP = """
from infinipipe.planner.v1 import planner_service_pb2 as pb, planner_service_pb2_grpc
request = pb.SubmitBatchRequest(job="a", generation=1, step=2, lengths_tokens=[5, 7])
assert pb.SubmitBatchRequest.FromString(request.SerializeToString()) == request
"""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_generated_code_is_made_for_the_oldest_protobuf_of_the_pins_and_both_ends_are_checked_by_make() -> None:
    pin = re.search(r'"protobuf>=([\d.]+),<(\d+)"', (ROOT / "pyproject.toml").read_text())
    versions = re.search(r"for version in ([\d. ]+);", (ROOT / "Makefile").read_text())
    assert pin is not None
    assert versions is not None
    oldest, newest = map(numbers, versions[1].split())

    assert GENERATED
    for path in GENERATED:
        made_for = re.search(r"# Protobuf Python Version: ([\d.]+)", path.read_text())
        assert made_for is not None
        assert numbers(made_for[1]) == numbers(pin[1]), path
    assert oldest == numbers(pin[1])
    assert newest[0] == int(pin[2]) - 1
    assert oldest <= numbers(importlib.metadata.version("protobuf")) <= newest


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_generated_code_works_in_one_process_with_others_that_bring_protobuf(neighbour: str, order: str) -> None:
    package = neighbour.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    lines = [f"import {neighbour}", ROUND_TRIP] if order == "before" else [ROUND_TRIP, f"import {neighbour}"]

    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 0, done.stderr
