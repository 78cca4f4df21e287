"""A checkpoint that goes from layout to layout stays what it is, to the last bit."""

import json
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from support_e2e.resumed_ranks import carry_checkpoint, train_part
from support_e2e.runs import write_run
from support_executor.groups import GroupPool

HOPS = [(1, 2, 1), (1, 1, 1), (2, 1, 2)]
"""Replicas, stages, ranks of a stage: from four ranks over two and one to four again."""


def read_tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Read all that a checkpoint holds, whole."""
    entries = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {}
    for name, entry in entries.items():
        assert isinstance(entry, TensorStorageMetadata)
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no process group, as is meant
        load(tensors, checkpoint_id=checkpoint, no_dist=True)
    return tensors


def with_layout(config: Path, layout: tuple[int, int, int], checkpoints: Path) -> Path:
    """Write the configuration of the same run on another layout, with its checkpoints in another folder."""
    path = config.with_name(f"{checkpoints.name}.toml")
    text = config.read_text()
    for old, new in [
        ("dp_size = 1\npp_size = 2\nsp_size = 2", "dp_size = {}\npp_size = {}\nsp_size = {}".format(*layout)),
        ('folder = "checkpoints"', f"folder = {json.dumps(str(checkpoints))}"),
        ('jsonl = "metrics.jsonl"', 'jsonl = "carried.jsonl"'),
    ]:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_a_checkpoint_carried_over_two_ranks_and_one_back_to_four_is_the_same_and_trains_on_the_same(
    groups: GroupPool, tmp_path: Path
) -> None:
    config = write_run(
        tmp_path,
        pp_size=2,
        sp_size=2,
        changes={
            "job": {"steps": 5},
            "optimizer": {"schedule": "cosine", "warmup_steps": 2},
            "checkpoint": {"folder": "checkpoints", "every_steps": 100},
            "metrics": {"jsonl": "metrics.jsonl"},
        },
    )
    groups.run(4, train_part, config, 0, 2)  # told to end behind the third step
    folder = tmp_path / "checkpoints"
    expected = read_tensors(folder / "step-3")

    for index, (dp_size, pp_size, sp_size) in enumerate(HOPS):
        hop = with_layout(config, (dp_size, pp_size, sp_size), folder)
        folder = tmp_path / f"hop-{index}"
        groups.run(dp_size * pp_size * sp_size, carry_checkpoint, hop, folder)

        carried = read_tensors(folder / "step-3")
        assert carried.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(carried[name], tensor), name
    # Parameters, both moments and the count of updates.
    assert {name.rsplit(".", 1)[-1] for name in expected} == {"weight", "exp_avg", "exp_avg_sq", "step"}
    assert {float(tensor) for name, tensor in expected.items() if name.endswith(".step")} == {3.0}

    straight = groups.run(4, train_part, config)
    roundabout = groups.run(4, train_part, with_layout(config, (1, 2, 2), folder))

    for one, other in zip(straight, roundabout, strict=True):
        assert one.steps == other.steps == [3, 4]
        assert one.losses == other.losses
        assert torch.equal(one.parameters, other.parameters)
    rows = [
        list(map(json.loads, (tmp_path / name).read_text().splitlines())) for name in ("metrics.jsonl", "carried.jsonl")
    ]
    rates = [{row["step"]: row["learning_rate"] for row in of_run} for of_run in rows]
    assert [rates[0][step] for step in (3, 4)] == [rates[1][step] for step in (3, 4)]
