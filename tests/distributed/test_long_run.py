"""Many steps in a row."""

import ctypes
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from infinipipe_executor.checkpoint_io import Checkpoints
from support_e2e.resumed_ranks import train_part
from support_e2e.runs import write_run
from support_executor.groups import GroupPool
from support_executor.plans import chunk, cut, make_batch, make_plan, varied
from support_executor.ranks import SEED, train_steps
from support_executor.reference import TINY, reference_training

# Four ranks take two cores for themselves, for half a minute: beside another file they would come near their limit.
pytestmark = pytest.mark.alone

STEPS = 200

# Rounding errors of about 1e-16 that AdamW lets grow: much smaller than anything a wrong message would do.
TOLERANCE = 1e-7


@pytest.mark.parametrize(("pp_size", "sp_size"), [(2, 2), (4, 1)])
def test_two_hundred_steps_on_four_ranks_train_as_one_process_does(
    groups: GroupPool, pp_size: int, sp_size: int
) -> None:
    config = replace(TINY, layers=pp_size)  # what goes wrong with time is in messages, not in layers
    batch = make_batch([11, 4, 6])
    first, second = cut(0, 6, 5)
    plan = make_plan([[chunk(first), chunk(second, *cut(1, 4))], [chunk(*cut(2, 6))]], pp_size, batch, varied(1))

    ranks = groups.run(4, train_steps, config, pp_size, sp_size, plan, batch, STEPS, timeout_s=100.0)

    expected = reference_training(config, SEED, batch, STEPS)
    assert expected[-1][0] < 0.1 * expected[0][0]
    for steps in ranks:
        for (loss, norm), (expected_loss, expected_norm) in zip(steps, expected, strict=True):
            assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
            assert norm == pytest.approx(expected_norm, rel=TOLERANCE)


class AllocatorCounts(ctypes.Structure):
    """What ``mallinfo2`` of glibc returns; the fifth number and the eighth are bytes that are allocated."""

    _fields_: ClassVar = [("counts", ctypes.c_size_t * 10)]


def allocated_bytes() -> int:
    """Bytes that are allocated; what was freed and is kept for later does not count."""
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = AllocatorCounts
    counts = mallinfo2().counts
    return int(counts[4] + counts[7])


@dataclass(frozen=True)
class Usage:
    """Writes down, every few steps, how much memory and how many files and threads the process of a rank holds."""

    folder: Path

    def __call__(self, step: int, _: Checkpoints) -> None:
        if step == 0:
            # Torch keeps a record of so many collectives, which is full from here on.
            for _repeat in range(2000):
                dist.all_reduce(torch.zeros(1))
        if step % 20 == 19:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            row = {
                "step": step + 1,
                "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
                "allocated_bytes": allocated_bytes(),
                "python_blocks": sys.getallocatedblocks(),
                "files": len(list(Path("/proc/self/fd").iterdir())),
                "threads": len(list(Path("/proc/self/task").iterdir())),
            }
            with (self.folder / f"usage-{dist.get_rank()}").open("a") as file:
                file.write(json.dumps(row) + "\n")


def test_five_hundred_steps_of_two_stages_with_checkpoints_and_metrics_leave_memory_files_and_threads_as_they_were(
    groups: GroupPool, tmp_path: Path
) -> None:
    config = write_run(
        tmp_path,
        pp_size=2,
        sp_size=1,
        changes={
            "job": {"steps": 500},
            "model": {"layers": 2},
            "data": {"sequences_per_batch": 1, "context_tokens": 16},
            "checkpoint": {"folder": "checkpoints", "every_steps": 50},
            "metrics": {"jsonl": "metrics.jsonl", "tensorboard": "events"},
        },
    )

    parts = groups.run(2, train_part, config, -1, -1, Usage(tmp_path), timeout_s=100.0)

    assert [part.is_done for part in parts] == [True, True], [part.error for part in parts]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 500
    for rank in range(2):
        rows = [json.loads(line) for line in (tmp_path / f"usage-{rank}").read_text().splitlines()]
        early = [row for row in rows if 100 <= row["step"] <= 240]
        late = [row for row in rows if row["step"] > 360]
        # A checkpoint that is being written holds files; the smallest counts are without one.
        assert min(row["files"] for row in late) <= min(row["files"] for row in early)
        assert min(row["threads"] for row in late) <= min(row["threads"] for row in early)
        # Reports that the planner of the test keeps are less than 1 KB and 50 small objects a step; a message has 2 KB.
        assert min(row["allocated_bytes"] for row in late) - min(row["allocated_bytes"] for row in early) < 2**18
        assert min(row["python_blocks"] for row in late) - min(row["python_blocks"] for row in early) < 100 * 260
        # What is freed and kept for later grows with the first dozens of checkpoints.
        assert min(row["bytes"] for row in late) - min(row["bytes"] for row in early) < 8 * 2**20
