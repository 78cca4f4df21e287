"""The ranks of a job as a mesh of replicas of the pipeline (axis dp), stages (pp) and ranks of a stage (sp).

The sp axis is innermost, so that the ranks of a stage, which talk most, are neighbours on one node; the dp axis, whose
ranks talk once a step, is outermost.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from infinipipe_executor.cuda_memory import set_cuda_defaults
from infinipipe_executor.errors import LayoutError
from infinipipe_executor.parallel.channels import Channels, open_channels
from infinipipe_executor.parallel.groups import open_group
from infinipipe_executor.parallel.peers import peers_watched

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True)
class Mesh:
    """Where this rank stands.

    Attributes:
        dp_size: Replicas of the pipeline.
        pp_size: Stages (paper: d_p).
        sp_size: Ranks of one stage (paper: d_s).
        dp_rank: Replica of this rank, from 0.
        pp_rank: Stage of this rank, from 0.
        sp_rank: Place of this rank within its stage, from 0.
        device: Device of this rank.
        dp_group: Process group of the ranks that hold the same parameters: one of each replica.
        sp_group: Process group of the stage for all-to-alls; they never queue behind gathered parameters, which have
            one of their own.
        device_mesh: The same as a DeviceMesh with axes ("dp", "pp", "sp"); its groups gather parameters and reduce
            gradients.
        channels: Channels to the neighbouring stages of the replica.
        ends_group: On the first and the last stage, where these are two: this rank and the one of the same place at the
            other end of the pipeline; for parameters that both ends hold.
    """

    dp_size: int
    pp_size: int
    sp_size: int
    dp_rank: int
    pp_rank: int
    sp_rank: int
    device: torch.device
    dp_group: dist.ProcessGroup
    sp_group: dist.ProcessGroup
    device_mesh: DeviceMesh
    channels: Channels
    ends_group: dist.ProcessGroup | None

    @property
    def rank(self) -> int:
        """Global rank."""
        return (self.dp_rank * self.pp_size + self.pp_rank) * self.sp_size + self.sp_rank

    @property
    def is_first_stage(self) -> bool:
        """Whether this stage holds the embedding."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this stage holds the head and the loss."""
        return self.pp_rank == self.pp_size - 1


def init_mesh(pp_size: int, sp_size: int, device: str = "cpu", timeout_s: float = 600.0, *, dp_size: int = 1) -> Mesh:
    """Join the other ranks of the job.

    The default process group is initialised from torchrun's environment unless the caller has done so.

    Args:
        pp_size: Stages.
        sp_size: Ranks of one stage.
        device: "cpu" (gloo) or "cuda" (NCCL; this rank takes the device of its LOCAL_RANK).
        timeout_s: Seconds after which a rank that does not answer counts as lost.
        dp_size: Replicas of the pipeline.

    Raises:
        LayoutError: If the job has not ``dp_size * pp_size * sp_size`` ranks, or the device is unknown or not there.
        PeerLostError: If another rank does not show up.
    """
    this_device = own_device(device)
    rank = int(os.environ.get("RANK", "0"))
    with peers_watched(rank, "the start of the job"):
        if not dist.is_initialized():
            dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=timeout_s))
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size != dp_size * pp_size * sp_size:
            raise LayoutError(
                f"the job has {world_size} ranks, but dp_size {dp_size} x pp_size {pp_size} x sp_size {sp_size} needs "
                f"{dp_size * pp_size * sp_size}"
            )
        ranks = torch.arange(world_size).view(dp_size, pp_size, sp_size)
        device_mesh = _open_mesh(ranks, device, timeout_s)
        channels = open_channels(ranks.tolist(), rank, timeout_s)
        ends_group = _open_ends(ranks, timeout_s)
        sp_group = _open_own(ranks.view(-1, sp_size), timeout_s)
    assert sp_group is not None, "every rank is in a stage"
    dp_rank, pp_rank, sp_rank = (ranks == rank).nonzero()[0].tolist()
    return Mesh(
        dp_size=dp_size,
        pp_size=pp_size,
        sp_size=sp_size,
        dp_rank=dp_rank,
        pp_rank=pp_rank,
        sp_rank=sp_rank,
        device=this_device,
        dp_group=device_mesh.get_group("dp"),
        sp_group=sp_group,
        device_mesh=device_mesh,
        channels=channels,
        ends_group=ends_group,
    )


def _open_mesh(ranks: torch.Tensor, device: str, timeout_s: float) -> DeviceMesh:
    """Create the groups of every axis, on all ranks in the same order."""
    own_groups = []
    for axis, axis_size in enumerate(ranks.shape):
        group = _open_own(ranks.movedim(axis, -1).reshape(-1, axis_size), timeout_s)
        assert group is not None, "every rank is on every axis"
        own_groups.append(group)
    return DeviceMesh.from_group(own_groups, device, mesh=ranks, mesh_dim_names=("dp", "pp", "sp"))


def _open_ends(ranks: torch.Tensor, timeout_s: float) -> dist.ProcessGroup | None:
    """Create the groups of both ends of every pipeline, on all ranks in the same order."""
    if ranks.shape[1] == 1:
        return None
    return _open_own(torch.stack([ranks[:, 0], ranks[:, -1]], dim=-1).reshape(-1, 2), timeout_s)


def _open_own(members: torch.Tensor, timeout_s: float) -> dist.ProcessGroup | None:
    """Create a group of the ranks of every row, on all ranks in the same order; return the one of this rank."""
    groups = [open_group(row, timeout_s) for row in members.tolist()]
    return next((group for group in groups if group is not None), None)


def own_device(device: str) -> torch.device:
    """Find this rank's device, and make it the current one.

    Args:
        device: "cpu" or "cuda".

    Raises:
        LayoutError: If the device is unknown or not there.
    """
    if device not in BACKENDS:
        raise LayoutError(f"device is {device!r}, it must be one of {', '.join(BACKENDS)}")
    if device == "cpu":
        return torch.device("cpu")
    set_cuda_defaults()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise LayoutError(
            f"device is 'cuda', but this node shows {torch.cuda.device_count()} CUDA devices to local rank {local_rank}"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
