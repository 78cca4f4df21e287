"""The optimizer of a stage."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from infinipipe_executor.config import OptimizerConfig


def build_optimizer(stage: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW over the parameters of a stage; each rank updates the shards that it holds.

    Weights decay where a parameter has two dimensions or more, the embedding included, tied or not; norms and biases
    do not. The groups follow from the shapes, so a checkpoint, which knows parameters by name, need not hold them.
    """
    parameters = list(stage.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=config.betas, fused=True
    )


def set_learning_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Let the next updates use a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def state_bytes(optimizer: torch.optim.AdamW) -> int:
    """Bytes of both moments that this rank holds; 0 before the first update."""
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return sum((moment.to_local() if isinstance(moment, DTensor) else moment).nbytes for moment in moments)


def create_state(optimizer: torch.optim.AdamW) -> None:
    """Create the state that AdamW would create at its first step, so that there is something to save or to read into.

    A parameter that has its state keeps it.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                # The fused update counts on the device.
                state["step"] = torch.tensor(0.0, dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
