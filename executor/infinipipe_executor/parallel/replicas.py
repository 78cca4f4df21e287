"""The sum of the gradients over the replicas of the pipeline, once a step.

Replicas run different numbers of chunks, or none, so nothing that happens chunk by chunk may wait for another replica:
every replica adds up the gradients of its own chunks, and behind its last backward pass they are summed once.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from infinipipe_executor.mesh import Mesh

BUCKET_BYTES = 64 * 2**20
"""Largest buffer in which gradients are put together for one message; a larger one goes alone, without a buffer."""


def sum_over_replicas(module: nn.Module, mesh: Mesh) -> None:
    """Sum every gradient over the replicas, in the type that it has; afterwards all replicas hold the same bits.

    A parameter without a gradient counts as zero: that of a replica that ran no chunk.

    Args:
        module: This rank's stage, its parameters sharded; behind its last backward pass of the step.
        mesh: Where this rank stands.
    """
    if mesh.dp_size == 1:
        return
    for bucket in fill_buckets(map(_own_gradient, module.parameters()), BUCKET_BYTES):
        if len(bucket) == 1:
            dist.all_reduce(bucket[0], group=mesh.dp_group)
            continue
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=mesh.dp_group)
        sums = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, summed in zip(bucket, sums, strict=True):
            gradient.copy_(summed.view_as(gradient))


def fill_buckets(tensors: Iterable[Tensor], limit_bytes: int) -> list[list[Tensor]]:
    """Put tensors together, in order, as long as they are no larger than the limit; those without elements drop out.

    Returns:
        Buckets of one type each; a bucket is larger than the limit only where it holds a single tensor that is.
    """
    buckets: list[list[Tensor]] = []
    held_bytes = 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        if buckets and buckets[-1][0].dtype == tensor.dtype and held_bytes + tensor.nbytes <= limit_bytes:
            buckets[-1].append(tensor)
            held_bytes += tensor.nbytes
        else:
            buckets.append([tensor])
            held_bytes = tensor.nbytes
    return buckets


def _own_gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    assert isinstance(parameter.grad, DTensor), "the stage is sharded"
    return parameter.grad.to_local()
