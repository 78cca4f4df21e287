"""What the ranks of a group run to show how messages and parameters travel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from infinipipe_contract.plan import ActionKind, ExecutionPlan
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import Stage, build_stage
from infinipipe_executor.parallel.channels import Channel, PostedReceive
from infinipipe_executor.parallel.warm_up import connections_of, warm_up
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.pipeline.stopwatch import Stopwatch
from support_executor.ranks import SEED, CollectiveCounter, mesh_of


def trace_step(config: ModelConfig, pp_size: int, plan: ExecutionPlan, batch: Batch) -> list[str]:
    """Run a step; return the order of receives that start ("post"), passes ("forward", ...) and receives that end."""
    events: list[str] = []
    post_receive, wait, span = Channel.post_receive, PostedReceive.wait, Stopwatch.span

    def post(self: Channel, *args: Any) -> PostedReceive:
        events.append("post")
        return post_receive(self, *args)

    def arrive(self: PostedReceive) -> torch.Tensor:
        events.append("wait")
        return wait(self)

    @contextmanager
    def compute(self: Stopwatch, kind: ActionKind, *args: Any) -> Iterator[None]:
        events.append(kind.name.lower())
        with span(self, kind, *args):
            yield

    mesh = mesh_of(pp_size, 1)
    step_runner = StepRunner(build_stage(config, mesh, dtype=torch.float64, seed=SEED), mesh)
    with (
        patch.object(Channel, "post_receive", post),
        patch.object(PostedReceive, "wait", arrive),
        patch.object(Stopwatch, "span", compute),
    ):
        step_runner.run(plan, batch)
    return events


def count_held_messages(
    config: ModelConfig, pp_size: int, plan: ExecutionPlan, batch: Batch, method: str = "run"
) -> tuple[int, int]:
    """Run a step, or evaluate its batch (``method`` of the runner).

    Returns:
        The most sent messages that a channel of this rank held at a time, 0 if it sent none; and how many at the end.
    """
    mesh = mesh_of(pp_size, 1)
    step_runner = StepRunner(build_stage(config, mesh, dtype=torch.float64, seed=SEED), mesh)
    held = [0]
    send = Channel.send

    def send_and_count(self: Channel, message: torch.Tensor) -> None:
        send(self, message)
        held.append(len(self._pending))

    with patch.object(Channel, "send", send_and_count):
        getattr(step_runner, method)(plan, batch)
    ends = [channel for channel in (mesh.channels.to_next, mesh.channels.to_previous) if channel is not None]
    return max(held), sum(len(channel._pending) for channel in ends)


def gather_in_steps(
    config: ModelConfig, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch, step_count: int
) -> tuple[list[int], int]:
    """Run steps; return how often parameters were gathered in each, and the most layers gathered at a time."""
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    step_runner = StepRunner(stage, mesh)
    gathers, most_layers = [], 0
    for _ in range(step_count):
        with CollectiveCounter() as counter, _GatheredLayers(stage) as gathered:
            step_runner.run(plan, batch)
        gathers.append(counter.counts["allgather_base"])
        most_layers = max(most_layers, gathered.most)
    return gathers, most_layers


class _GatheredLayers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Looks at every operation how many layers hold whole parameters, or are about to."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._stage = stage
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, sum(map(_is_gathered, self._stage.layers.values())))
        return result


def _is_gathered(layer: Any) -> bool:
    [group] = layer._get_fsdp_state()._fsdp_param_groups  # no public way to ask
    return bool(group.is_unsharded or group._all_gather_result is not None)


def warm_up_and_list(dp_size: int, pp_size: int, sp_size: int) -> tuple[list[str], int]:
    """Warm up; return the connections of this rank in order, and how many exchanges it took part in."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    with CollectiveCounter() as counter:
        warm_up(mesh, 20.0)
    return [connection.name for connection in connections_of(mesh)], counter.counts.total()


def warm_up_but_one(pp_size: int, silent_rank: int, timeout_s: float) -> str:
    """Warm up with a rank that takes no part; return the error of the others."""
    mesh = mesh_of(pp_size, 1, timeout_s)
    if mesh.rank == silent_rank:
        return ""
    return _peer_lost(lambda: warm_up(mesh, timeout_s))


def _peer_lost(call: Callable[[], None]) -> str:
    try:
        call()
    except PeerLostError as error:
        return str(error)
    return f"rank {dist.get_rank()} noticed nothing"
