"""Tied embeddings over stages: the first stage embeds with a parameter that the last one predicts with.

Both hold it, divided among their ranks in the same way. After the backward passes either has a part of its gradient;
the two ranks of the same place in their stages add up theirs. A sum of two does not depend on its order, so both get
the same bits, and the same update keeps the copies identical for ever.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.stage import Stage


def tied_parameter(stage: Stage, mesh: Mesh) -> Tensor | None:
    """Find the parameter that the stage at the other end of the pipeline holds, too; None where there is none."""
    if not stage.config.ties_embeddings or mesh.pp_size == 1 or stage.embedding is None:
        return None
    return stage.embedding.weight


def is_copy(parameter: Tensor, stage: Stage, mesh: Mesh) -> bool:
    """Tell whether a parameter counts on the first stage: the last one holds a copy of it."""
    return mesh.is_last_stage and parameter is tied_parameter(stage, mesh)


def sum_tied_gradients(stage: Stage, mesh: Mesh) -> None:
    """Add up both parts of the tied parameter's gradient; a collective of the ranks at both ends of the pipeline.

    Where replicas of the pipeline add up their gradients, too, they come first: their sums depend on the order, and
    only what is added up last has the same bits at both ends.

    Args:
        stage: This rank's stage, after its last backward pass.
        mesh: Where this rank stands.
    """
    parameter = tied_parameter(stage, mesh)
    if parameter is None or parameter.grad is None:
        return
    assert isinstance(parameter.grad, DTensor)
    assert mesh.ends_group is not None, "this rank stands at an end of the pipeline"
    dist.all_reduce(parameter.grad.to_local(), group=mesh.ends_group)
