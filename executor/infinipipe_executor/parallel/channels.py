"""Messages between neighbouring stages.

Every directed edge (activations one way, gradients the other) is a channel with a process group of its own, so
messages of one channel pair up in order by construction, whatever the order among channels. Sends never wait: the
message is kept until it has left, at the latest at the end of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from infinipipe_executor.parallel.groups import open_group


@dataclass
class Channel:
    """One directed edge, seen from one of its two ends.

    Attributes:
        group: Process group of the two ends; nothing else runs on it.
        peer_rank: Global rank of the other end.
        message_count: Messages sent or received through this end so far.
    """

    group: dist.ProcessGroup
    peer_rank: int
    message_count: int = 0
    _pending: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

    def send(self, message: Tensor) -> None:
        """Start to send a message; a message without rows is not sent, and its receiver knows."""
        if not message.numel():
            return
        self._drop_sent()
        contiguous = message.contiguous()
        work = dist.isend(contiguous, self.peer_rank, group=self.group)
        assert work is not None, "this rank is an end of the channel"
        self._pending.append((work, contiguous))
        self.message_count += 1

    def receive(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Wait for the next message, whose shape the plan tells."""
        message = torch.empty(shape, dtype=dtype, device=device)
        if not message.numel():
            return message
        work = dist.irecv(message, self.peer_rank, group=self.group)
        assert work is not None, "this rank is an end of the channel"
        work.wait()
        self.message_count += 1
        return message

    def flush(self) -> None:
        """Wait until every message has left."""
        while self._pending:
            work, _ = self._pending.pop(0)
            work.wait()

    def _drop_sent(self) -> None:
        """Let go of the messages that have left; a backend may only know once it waits (gloo), then all stay."""
        while self._pending and self._pending[0][0].is_completed():
            self._pending.pop(0)[0].wait()


@dataclass(frozen=True)
class Channels:
    """The channels of one stage; None beyond either end of the pipeline."""

    from_previous: Channel | None = None
    to_next: Channel | None = None
    from_next: Channel | None = None
    to_previous: Channel | None = None

    def flush(self) -> None:
        """Wait until every message of this stage has left."""
        for channel in (self.to_next, self.to_previous):
            if channel is not None:
                channel.flush()

    @property
    def message_count(self) -> int:
        """Messages sent and received by this stage so far."""
        ends = (self.from_previous, self.to_next, self.from_next, self.to_previous)
        return sum(channel.message_count for channel in ends if channel is not None)


def open_channels(ranks: Sequence[Sequence[Sequence[int]]], rank: int, timeout_s: float) -> Channels:
    """Create the process groups of all edges, on all ranks in the same order, and return this rank's ends.

    Args:
        ranks: Global ranks by replica, stage and place in the stage; each talks to the rank of the same place in the
            neighbouring stages of its replica.
        rank: Global rank of this process.
        timeout_s: Seconds after which a neighbour that does not answer counts as lost.
    """
    ends: dict[str, Channel] = {}
    edges = [edge for stages in ranks for one, next_one in pairwise(stages) for edge in zip(one, next_one, strict=True)]
    for upper, lower in edges:
        for sender, receiver, at_sender, at_receiver in (
            (upper, lower, "to_next", "from_previous"),
            (lower, upper, "to_previous", "from_next"),
        ):
            group = open_group((upper, lower), timeout_s)
            if group is not None:
                place, peer_rank = (at_sender, receiver) if rank == sender else (at_receiver, sender)
                ends[place] = Channel(group, peer_rank)
    return Channels(**ends)
