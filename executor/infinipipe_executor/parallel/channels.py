"""Messages between neighbouring stages.

Every directed edge (activations one way, gradients the other) is a channel with a process group of its own, so
messages of one channel pair up in order by construction, whatever the order among channels. On CUDA a group has a
communicator and a stream of its own, so a message never queues behind one of another channel.

Nothing here waits for a peer but ``PostedReceive.wait``, ``Channel.keep_last`` and ``Channel.flush``. On CUDA, waiting
stops the stream that computes, not this process: a send or a receive starts behind what that stream was given before,
and what the stream is given after a wait starts behind the message. Buffers are held until they were waited for, so
they go back to the allocator in the order of that one stream, and no other stream need be recorded on them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from infinipipe_executor.parallel.groups import open_group


class PostedReceive(NamedTuple):
    """A receive that was started.

    Attributes:
        message: Where the message arrives.
        work: The transport's own; None for a message without rows, which nobody sends.
    """

    message: Tensor
    work: dist.Work | None

    def wait(self) -> Tensor:
        """Wait for the message."""
        if self.work is not None:
            self.work.wait()
        return self.message


class _Sent(NamedTuple):
    """A message that may not have left: its number since the last flush, its work and, until then, its tensor."""

    number: int
    work: dist.Work
    message: Tensor


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
    _next_number: int = 0
    _pending: deque[_Sent] = field(default_factory=deque)

    def send(self, message: Tensor) -> None:
        """Start to send a message; a message without rows is not sent, and its receiver knows."""
        number, self._next_number = self._next_number, self._next_number + 1
        if not message.numel():
            return
        while self._pending and self._pending[0].work.is_completed():
            self._let_go()
        contiguous = message.contiguous()
        work = dist.isend(contiguous, self.peer_rank, group=self.group)
        assert work is not None, "this rank is an end of the channel"
        self._pending.append(_Sent(number, work, contiguous))
        self.message_count += 1

    def post_receive(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> PostedReceive:
        """Start to receive the next message, whose shape the plan tells; whoever posts it waits for it."""
        message = torch.empty(shape, dtype=dtype, device=device)
        if not message.numel():
            return PostedReceive(message, None)
        work = dist.irecv(message, self.peer_rank, group=self.group)
        assert work is not None, "this rank is an end of the channel"
        self.message_count += 1
        return PostedReceive(message, work)

    def receive(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Wait for the next message, whose shape the plan tells."""
        return self.post_receive(shape, dtype, device).wait()

    def let_go(self, arrived_count: int) -> None:
        """Let go of messages of which it is certain that they have arrived.

        It is for the caller to know (``message_order.arrived_before``); then this waits for nobody, and stages cannot
        wait for each other for ever, as they could if a send waited as soon as some number of messages is on its way.
        Some backends (gloo) know that a message has left only when they wait for it, so asking is not enough; on CUDA
        this process may have planned far ahead of the device, so that asking would not free anything either.

        Args:
            arrived_count: Messages that have arrived since the last flush, those without rows included.
        """
        while self._pending and self._pending[0].number < arrived_count:
            self._let_go()

    def keep_last(self, count: int) -> None:
        """Wait until all messages but the last ``count`` have left.

        Only for messages that go one way (an evaluation): the last stage sends none and so waits for no receiver, hence
        it takes what the stage before it has sent, hence that one goes on, and so forth up to the first stage.
        """
        self.let_go(self._next_number - count)

    def flush(self) -> None:
        """Wait until every message has left; count from 0 again."""
        while self._pending:
            self._let_go()
        self._next_number = 0

    def _let_go(self) -> None:
        oldest = self._pending.popleft()  # by name, so that its tensor outlives the wait
        oldest.work.wait()


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
