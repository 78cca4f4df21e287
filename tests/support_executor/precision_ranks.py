"""What the ranks of a group run in tests of precision, z-loss and the optimizer."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.config import OptimizerConfig
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.optimizer import build_optimizer
from infinipipe_executor.parallel.channels import Channel
from infinipipe_executor.parallel.grad_norm import clip_gradients
from infinipipe_executor.pipeline.runner import StepRunner
from support_executor.ranks import SEED, mesh_of, whole_gradients


@dataclass(frozen=True)
class ZStep:
    """What a rank tells of a step with z-loss."""

    loss: float
    z_loss: float
    gradients: dict[str, Tensor]


def run_z_step(
    config: ModelConfig, dp_size: int, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch, z_loss: float
) -> ZStep:
    """Run one step in fp64."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    result = StepRunner(stage, mesh, z_loss=z_loss).run(plan, batch)
    return ZStep(result.loss, result.z_loss, whole_gradients(stage, keep=mesh.sp_rank == 0))


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Writes down which types go through which collective."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.dtypes: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            flat, _ = tree_flatten((args, kwargs))
            self.dtypes[func._opname.strip("_")] |= {one.dtype for one in flat if isinstance(one, Tensor)}
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Types:
    """Types that a rank saw in a step in bf16.

    Attributes:
        parameters: Of the parameters and of the state of the optimizer.
        gradients: Of the gradients behind the step.
        messages: Of the messages between stages.
        collectives: Of the tensors of every collective, by its name.
    """

    parameters: set[torch.dtype]
    gradients: set[torch.dtype]
    messages: set[torch.dtype]
    collectives: dict[str, set[torch.dtype]]


def see_types(
    config: ModelConfig, dp_size: int, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch
) -> Types:
    """Run and update one step in bf16; return which types went where."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=torch.bfloat16, seed=SEED)
    optimizer = build_optimizer(stage, OptimizerConfig(learning_rate=1e-3))
    messages: set[torch.dtype] = set()
    send = Channel.send

    def send_and_see(channel: Channel, message: Tensor) -> None:
        messages.add(message.dtype)
        send(channel, message)

    collectives = _Collectives()
    with patch.object(Channel, "send", send_and_see), collectives:
        StepRunner(stage, mesh).run(plan, batch)
    gradients = {parameter.grad.dtype for parameter in stage.parameters() if parameter.grad is not None}
    optimizer.step()
    held = [*stage.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
    return Types({tensor.dtype for tensor in held}, gradients, messages, dict(collectives.dtypes))


@dataclass(frozen=True)
class SmallUpdates:
    """Whole parameters before and after updates far below what bf16 can tell apart."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]


def train_with_tiny_rate(
    config: ModelConfig, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch, rate: float, count: int
) -> SmallUpdates:
    """Train in bf16 with a tiny learning rate and no decay."""
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(config, mesh, dtype=torch.bfloat16, seed=SEED)
    optimizer = build_optimizer(stage, OptimizerConfig(learning_rate=rate, weight_decay=0.0))
    runner = StepRunner(stage, mesh)
    before = _whole_parameters(stage)
    for _ in range(count):
        runner.run(plan, batch)
        clip_gradients(stage, mesh, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return SmallUpdates(before, _whole_parameters(stage))


def _whole_parameters(stage: torch.nn.Module) -> dict[str, Tensor]:
    whole = {}
    for name, parameter in stage.named_parameters():
        assert isinstance(parameter, DTensor)
        whole[name] = parameter.full_tensor().detach().clone()
    return whole
