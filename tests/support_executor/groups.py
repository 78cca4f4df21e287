"""Groups of processes that stay up for many cases.

The fork server imports torch once; a group of ranks then starts in a fraction of a second and runs one function after
the other. A rank that does not answer dumps all its stacks and fails the test; so does a rank that ends.
"""

import faulthandler
import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

GROUP_TIMEOUT_S = 20.0
CASE_TIMEOUT_S = 60.0

_context = mp.get_context("forkserver")


class RankFailureError(AssertionError):
    """A rank raised, ended or hung."""


class ProcessGroup:
    """A gloo group of processes on this machine.

    Args:
        world_size: Ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._folder = tempfile.TemporaryDirectory()
        self._processes = []
        self._pipes: list[Connection] = []
        _context.set_forkserver_preload(["torch.distributed.fsdp", "infinipipe_executor.pipeline.runner"])
        for rank in range(world_size):
            ours, theirs = _context.Pipe()
            process = _context.Process(target=_serve, args=(rank, world_size, self._folder.name, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = CASE_TIMEOUT_S,
        lost_rank: int | None = None,
    ) -> list[Any]:
        """Run a function of a module on all ranks; return what each returned, but for the rank that is to be lost.

        Raises:
            RankFailureError: With the traceback of the first rank that raised, or all stacks if a rank hangs.
        """
        for pipe in self._pipes:
            pipe.send((function, args, timeout_s))
        return [self._answer(rank, timeout_s) for rank in range(self.world_size) if rank != lost_rank]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, rank: int, timeout_s: float) -> Any:
        # A little more than the rank allows itself, so that it can dump its stacks first.
        if not self._pipes[rank].poll(timeout_s + 5):
            raise RankFailureError(f"rank {rank} did not answer within {timeout_s} s\n{self._stacks()}")
        try:
            succeeded, answer = self._pipes[rank].recv()
        except EOFError:
            raise RankFailureError(f"rank {rank} ended\n{self._stacks()}") from None
        if not succeeded:
            raise RankFailureError(f"rank {rank}:\n{answer}")
        return answer

    def _stacks(self) -> str:
        return "\n".join(path.read_text() for path in sorted(Path(self._folder.name).glob("stacks-*")))


def _serve(rank: int, world_size: int, folder: str, pipe: Connection) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    with Path(folder, f"stacks-{rank}").open("w") as stacks:
        dist.init_process_group(
            "gloo",
            store=FileStore(str(Path(folder, "store")), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=GROUP_TIMEOUT_S),
        )
        while True:  # until the test kills this process
            function, args, timeout_s = pipe.recv()
            faulthandler.dump_traceback_later(timeout_s, file=stacks)
            try:
                answer = (True, function(*args))
            except BaseException:
                answer = (False, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
            pipe.send(answer)


class GroupPool:
    """Keeps one group for each number of ranks; replaces a group that a failure may have left out of step."""

    def __init__(self) -> None:
        self._groups: dict[int, ProcessGroup] = {}

    def run(self, world_size: int, function: Callable[..., Any], *args: Any, timeout_s: float = CASE_TIMEOUT_S) -> Any:
        """Run a function on all ranks of the group of that size; see ``ProcessGroup.run``."""
        if world_size not in self._groups:
            self._groups[world_size] = ProcessGroup(world_size)
        try:
            return self._groups[world_size].run(function, *args, timeout_s=timeout_s)
        except RankFailureError:
            self._groups.pop(world_size).close()
            raise

    def close(self) -> None:
        """End all groups; a later run starts new ones."""
        while self._groups:
            self._groups.popitem()[1].close()
