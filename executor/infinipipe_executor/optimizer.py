"""The optimizer of a stage."""

import torch
from torch import nn

from infinipipe_executor.config import OptimizerConfig


def build_optimizer(stage: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW over the parameters of a stage; each rank updates the shards that it holds."""
    return torch.optim.AdamW(
        stage.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
    )


def create_state(optimizer: torch.optim.AdamW) -> None:
    """Create the state that AdamW would create at its first step, so that there is something to save or to read into.

    A parameter that has its state keeps it.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0, dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
