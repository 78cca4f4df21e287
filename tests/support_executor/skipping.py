"""A rank that leaves out one instruction of a step."""

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.pipeline import runner
from infinipipe_executor.pipeline.runner import StepRunner
from support_executor.ranks import mesh_of


def run_step_with_a_skip(
    config: ModelConfig,
    plan: ExecutionPlan,
    batch: Batch,
    faulty_rank: int,
    skipped: tuple[InstructionKind, int],
    timeout_s: float,
) -> str:
    """Run a step of as many stages as ranks in which one rank skips an instruction for a chunk; return the error."""
    mesh = mesh_of(dist.get_world_size(), 1, timeout_s)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=3)

    def lower_and_skip(*args: Any) -> list[Instruction]:
        return [one for one in lower_stage(*args) if (one.kind, one.chunk_id.chunk_index) != skipped]

    with patch.object(runner, "lower_stage", lower_and_skip if mesh.rank == faulty_rank else lower_stage):
        try:
            StepRunner(stage, mesh).run(plan, batch)
        except PeerLostError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # the rank that skips may trip over itself
            return f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
    return "no error"
