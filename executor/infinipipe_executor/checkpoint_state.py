"""What a checkpoint holds of a rank: parameters and the state of the optimizer, under names of the whole model.

``model.<parameter>`` and ``optimizer.<parameter>.<entry>``; no name and no shape tells of the layout, so that another
one can read it. Nothing about dropout: its masks follow from the seed, the step and the rank.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from infinipipe_contract.errors import first_line
from infinipipe_executor.errors import CheckpointError
from infinipipe_executor.optimizer import create_state

KEY_PREFIX = "model."
"""Before the name of a parameter."""


def rank_state(stage: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Name the tensors of this rank; they are those of the training, not copies."""
    create_state(optimizer)
    state = {}
    for name, parameter in stage.named_parameters():
        state[KEY_PREFIX + name] = parameter.detach()
        for entry, value in optimizer.state[parameter].items():
            state[f"optimizer.{name}.{entry}"] = value
    return state


def load_state(path: Path, stage: nn.Module, optimizer: torch.optim.AdamW, group: dist.ProcessGroup) -> None:
    """Read a checkpoint of any layout into the parameters and the optimizer of this rank.

    Args:
        path: A whole checkpoint.
        stage: This rank's stage.
        optimizer: Its optimizer.
        group: All ranks, over a backend that carries CPU tensors.

    Raises:
        CheckpointError: If it does not hold what this model needs; the same on every rank.
    """
    try:
        load(rank_state(stage, optimizer), storage_reader=FileSystemReader(path), process_group=group)
    except CheckpointException as error:
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {first_failure(error)}") from None


def first_failure(error: CheckpointException) -> str:
    """Say which rank failed first and why; every rank is told the failures of all."""
    rank, (cause, _) = min(error.failures.items())
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else first_line(cause)
    return f"rank {rank}: {reason}"
