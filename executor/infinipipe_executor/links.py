"""Links: latency and bandwidth between stages and inside a stage, as the job's own channels and groups have them.

Two message sizes give the line of Eq. 2; all ranks exchange at once, as they do in training.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from infinipipe_contract.profile import LinkCost
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.parallel.peers import peers_watched

# Message sizes whose times give a link's latency and bandwidth, in bytes of one rank.
SMALL_MESSAGE_BYTES, LARGE_MESSAGE_BYTES = 2**12, 2**20
MESSAGE_REPEATS = 10

# A link that the layout does not have: costs nothing.
NO_LINK = LinkCost(bandwidth_bytes_per_s=1e15, latency_s=0.0)


def measure_all2all(mesh: Mesh) -> LinkCost:
    """Measure the all-to-all inside a stage; a collective of all ranks."""
    if mesh.sp_size == 1:
        return NO_LINK

    def exchange(message_bytes: int) -> None:
        message = torch.zeros(message_bytes // mesh.sp_size * mesh.sp_size, dtype=torch.uint8, device=mesh.device)
        dist.all_to_all_single(torch.empty_like(message), message, group=mesh.sp_group)

    small_s, large_s = _time_messages(exchange, mesh)
    link = _link(small_s, large_s)
    return LinkCost(link.bandwidth_bytes_per_s, link.latency_s / 2)  # Eq. 3 counts it twice


def measure_p2p(mesh: Mesh) -> LinkCost:
    """Measure the messages between the first two stages, there and back; a collective of all ranks."""
    if mesh.pp_size == 1:
        return NO_LINK
    channels = mesh.channels

    def ping_pong(message_bytes: int) -> None:
        message = torch.zeros(message_bytes, dtype=torch.uint8, device=mesh.device)
        if mesh.pp_rank == 0:
            assert channels.to_next is not None and channels.from_next is not None
            channels.to_next.send(message)
            channels.from_next.receive(message.shape, message.dtype, mesh.device)
        elif mesh.pp_rank == 1:
            assert channels.from_previous is not None and channels.to_previous is not None
            channels.to_previous.send(channels.from_previous.receive(message.shape, message.dtype, mesh.device))
        channels.flush()

    there_and_back_s = _time_messages(ping_pong, mesh)
    return _link(there_and_back_s[0] / 2, there_and_back_s[1] / 2)


def _time_messages(exchange: Callable[[int], None], mesh: Mesh) -> tuple[float, float]:
    """Time small and large messages: the median of several, the slowest rank's."""
    medians = []
    with peers_watched(mesh.rank, "the measurement of the links"):
        for message_bytes in (SMALL_MESSAGE_BYTES, LARGE_MESSAGE_BYTES):
            times_s = []
            for _ in range(MESSAGE_REPEATS + 1):
                start_s = time.perf_counter()
                exchange(message_bytes)
                if mesh.device.type == "cuda":
                    torch.cuda.synchronize(mesh.device)
                times_s.append(time.perf_counter() - start_s)
            medians.append(statistics.median(times_s[1:]))
    small_s, large_s = slowest(medians, mesh)
    return small_s, large_s


def _link(small_s: float, large_s: float) -> LinkCost:
    """Draw the line through two message sizes; a line that does not rise has no usable slope, so latency takes all."""
    step_s = max(large_s - small_s, 1e-9)
    bandwidth = (LARGE_MESSAGE_BYTES - SMALL_MESSAGE_BYTES) / step_s
    return LinkCost(bandwidth, max(0.0, small_s - SMALL_MESSAGE_BYTES / bandwidth))


def mean_of_stages(seconds: Sequence[float], mesh: Mesh) -> list[float]:
    """Maximum over the ranks of a stage, mean over the stages of all replicas, element by element."""
    mean = torch.tensor(seconds, dtype=torch.float64, device=mesh.device)
    with peers_watched(mesh.rank, "the measurement of the profile"):
        dist.all_reduce(mean, dist.ReduceOp.MAX, group=mesh.sp_group)
        dist.all_reduce(mean)
    return [float(value) / dist.get_world_size() for value in mean]


def slowest(seconds: Sequence[float], mesh: Mesh) -> list[float]:
    """Maximum over all ranks, element by element."""
    slowest = torch.tensor(seconds, dtype=torch.float64, device=mesh.device)
    with peers_watched(mesh.rank, "the measurement of the profile"):
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(value) for value in slowest]
