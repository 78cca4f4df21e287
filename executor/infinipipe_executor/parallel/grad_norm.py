"""Clipping by the global norm, over all stages and all ranks of a stage; replicas hold the same gradients."""

import math

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.parallel.tied import is_copy


def clip_gradients(stage: Stage, mesh: Mesh, max_norm: float) -> float:
    """Scale the gradients of the whole model so that their norm is at most ``max_norm``.

    Every element of a gradient lives on exactly one rank of a replica, so one sum of squares over the ranks of the
    first replica, in fp64, is the norm of the model, and all ranks apply the same factor. A tied embedding lives at
    both ends of the pipeline and counts once.

    Args:
        stage: This rank's stage, after the backward pass.
        mesh: Where this rank stands.
        max_norm: Largest norm that passes unscaled; infinity scales nothing. A norm that is not finite scales nothing
            either.

    Returns:
        The norm before clipping, the same on every rank; not finite if a gradient is not.

    Raises:
        PeerLostError: If another rank is gone.
    """
    shards: list[torch.Tensor] = []
    square = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for parameter in stage.parameters():
        if parameter.grad is None:
            continue
        shards.append(_local(parameter.grad))
        if mesh.dp_rank == 0 and not is_copy(parameter, stage, mesh):
            square += torch.linalg.vector_norm(shards[-1], dtype=torch.float64) ** 2
    with peers_watched(mesh.rank, "the sum of the gradient norm"):
        dist.all_reduce(square)
    norm = square.sqrt().item()
    if max_norm < norm < math.inf:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
