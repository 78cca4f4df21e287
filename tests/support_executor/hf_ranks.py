"""What the ranks of a group run with models from folders."""

from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.hf_weights import HfWeights
from infinipipe_executor.model.model_file import write_model_file
from infinipipe_executor.model.source import ModelSource
from infinipipe_executor.model.stage import Stage, build_stage
from infinipipe_executor.pipeline.runner import StepRunner
from support_executor.ranks import SEED, mesh_of
from support_executor.reference import LEARNING_RATE


def logits_of_source(source: ModelSource, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch) -> Tensor:
    """Load a model and run a batch through it; return this rank's rows of the logits, none but on the last stage."""
    stage, mesh = _build(source, pp_size, sp_size)
    return _logits(stage, mesh, plan, batch)


def reads_of_source(source: ModelSource, pp_size: int, sp_size: int) -> list[tuple[str, int, int]]:
    """Load a model; return what this rank read: our names, first rows and rows behind the last ones."""
    reads: list[tuple[str, int, int]] = []
    read = HfWeights.read_rows

    def spy(weights: HfWeights, name: str, start: int, stop: int) -> Tensor:
        reads.append((name, start, stop))
        return read(weights, name, start, stop)

    with mock.patch.object(HfWeights, "read_rows", spy):
        _build(source, pp_size, sp_size)
    return reads


def train_and_save(
    source: ModelSource, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch, count: int, folder: Path
) -> Tensor:
    """Load a model, train it and save its parameters and description; return the logits of the trained model."""
    stage, mesh = _build(source, pp_size, sp_size)
    runner, optimizer = StepRunner(stage, mesh), torch.optim.AdamW(stage.parameters(), lr=LEARNING_RATE)
    for _ in range(count):
        runner.run(plan, batch)
        optimizer.step()
        optimizer.zero_grad()
    save_model(stage, source, folder)
    return _logits(stage, mesh, plan, batch)


def save_model(stage: Stage, source: ModelSource, folder: Path) -> None:
    """Save the parts of a checkpoint that an export reads."""
    save({f"model.{name}": parameter for name, parameter in stage.named_parameters()}, checkpoint_id=folder)
    write_model_file(folder, source.description)


def _build(source: ModelSource, pp_size: int, sp_size: int) -> tuple[Stage, Mesh]:
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(source.config, mesh, dtype=torch.float32, seed=SEED, weights=source.weights)
    return stage, mesh


def _logits(stage: Stage, mesh: Mesh, plan: ExecutionPlan, batch: Batch) -> Tensor:
    """Run a step and keep the logits, over which the loss writes their gradient."""
    seen: list[Tensor] = [torch.empty(0, stage.config.vocab)]
    make = stage._logits

    def keep(x: Tensor) -> Tensor:
        logits = make(x)
        seen.append(logits.detach().clone())
        return logits

    stage._logits = keep  # type: ignore[method-assign]
    StepRunner(stage, mesh).run(plan, batch)
    stage._logits = make  # type: ignore[method-assign]
    return torch.cat(seen)
