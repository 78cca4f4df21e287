"""Warm-up: a tiny message over every connection of the job, before anything is measured or trained.

Backends open connections (NCCL: communicators) at the first message. Left to the first step, they would open in the
order of the plan, another one on every stage, at the cost of that step, and a connection that cannot be opened would
look like a rank that is slow. Entry point: ``warm_up``.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from infinipipe_executor.mesh import Mesh
from infinipipe_executor.parallel.channels import Channel
from infinipipe_executor.parallel.peers import peers_watched

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Connection:
    """One connection, seen from one of its members.

    Attributes:
        name: What connects whom; the same on all members.
        exchange: Starts an exchange of a tensor with the other members.
    """

    name: str
    exchange: Callable[[Tensor], dist.Work | None]


def warm_up(mesh: Mesh, timeout_s: float) -> None:
    """Exchange something over every connection, one after the other.

    No two ranks can wait for each other for ever: all of them go by one order of all connections of the job, so of
    those that are not done, the first one has all its members.

    Args:
        mesh: Where this rank stands.
        timeout_s: Seconds after which a member that does not answer counts as lost.

    Raises:
        PeerLostError: If a member is gone or silent; names the connection.
    """
    connections = connections_of(mesh)
    for connection in connections:
        with peers_watched(mesh.rank, f"the first exchange over {connection.name}"):
            work = connection.exchange(torch.zeros(mesh.sp_size, device=mesh.device))
            assert work is not None, "this rank is a member"
            # Given a time of its own, waiting stops this process on CUDA, too.
            work.wait(timedelta(seconds=timeout_s))
    logger.debug("rank %d opened %s", mesh.rank, "; ".join(connection.name for connection in connections))


def connections_of(mesh: Mesh) -> list[Connection]:
    """List the connections of this rank, in the order that all ranks share: edge by edge, then groups by purpose."""
    channels = mesh.channels
    connections = [
        _receiving(channels.from_previous, mesh.rank),
        _sending(channels.to_previous, mesh.rank),
        _sending(channels.to_next, mesh.rank),
        _receiving(channels.from_next, mesh.rank),
        _all_to_all(mesh.sp_group),
        _sum(mesh.device_mesh.get_group("sp"), "the parameters"),
        _sum(mesh.dp_group, "the gradients"),
        _sum(mesh.ends_group, "the tied embedding"),
        _sum(dist.group.WORLD, "the loss"),
    ]
    return [connection for connection in connections if connection is not None]


def _sending(channel: Channel | None, rank: int) -> Connection | None:
    if channel is None:
        return None
    peer_rank, group = channel.peer_rank, channel.group
    return Connection(_edge(rank, peer_rank), lambda message: dist.isend(message, peer_rank, group=group))


def _receiving(channel: Channel | None, rank: int) -> Connection | None:
    if channel is None:
        return None
    peer_rank, group = channel.peer_rank, channel.group
    return Connection(_edge(peer_rank, rank), lambda message: dist.irecv(message, peer_rank, group=group))


def _edge(sender: int, receiver: int) -> str:
    return f"the channel from rank {sender} to rank {receiver}"


def _sum(group: dist.ProcessGroup | None, what: str) -> Connection | None:
    if group is None or group.size() == 1:
        return None
    name = f"the group for {what} of {_members(group)}"
    return Connection(name, lambda message: dist.all_reduce(message, group=group, async_op=True))


def _all_to_all(group: dist.ProcessGroup) -> Connection | None:
    """Describe the group of a stage; the tensor has a part for each of its ranks."""
    if group.size() == 1:
        return None
    name = f"the group for the all-to-alls of {_members(group)}"
    return Connection(
        name, lambda message: dist.all_to_all_single(torch.empty_like(message), message, group=group, async_op=True)
    )


def _members(group: dist.ProcessGroup) -> str:
    return f"ranks {', '.join(map(str, dist.get_process_group_ranks(group)))}"
