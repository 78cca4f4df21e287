"""What the ranks of a group run."""

import hashlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from infinipipe_contract.plan import ActionKind, Chunk, ExecutionPlan
from infinipipe_contract.schedule import share_tokens
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import ExecutorError
from infinipipe_executor.mesh import Mesh, init_mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import Stage, build_stage
from infinipipe_executor.parallel import replicas
from infinipipe_executor.parallel.grad_norm import clip_gradients
from infinipipe_executor.parallel.ulysses import HeadExchange
from infinipipe_executor.pipeline import runner
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_executor.pipeline.runner import StepRunner
from support_executor.groups import GROUP_TIMEOUT_S
from support_executor.reference import LEARNING_RATE, MAX_NORM

SEED = 11

_meshes: dict[tuple[int, int, int], Mesh] = {}


@dataclass(frozen=True)
class RankStep:
    """What one rank reports of a step; gradients are whole tensors, and only on the first rank of every stage."""

    loss: float
    gradients: dict[str, Tensor]
    message_count: int
    pass_count: int
    peak_bytes: float
    norm: float


def mesh_of(pp_size: int, sp_size: int, timeout_s: float = GROUP_TIMEOUT_S, *, dp_size: int = 1) -> Mesh:
    """The mesh of this process; made once."""
    sizes = (dp_size, pp_size, sp_size)
    if sizes not in _meshes:
        _meshes[sizes] = init_mesh(pp_size, sp_size, "cpu", timeout_s, dp_size=dp_size)
    return _meshes[sizes]


def run_step(
    config: ModelConfig,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    dtype: torch.dtype = torch.float64,
    dp_size: int = 1,
    shards_gradients: bool = True,
    stage_layers: tuple[int, ...] | None = None,
) -> RankStep:
    """Build the stage, run one step, report everything; dropout masks come from a seed of the rank."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=dtype, seed=SEED, stage_layers=stage_layers)
    torch.manual_seed(mesh.rank)
    before = mesh.channels.message_count
    result = StepRunner(stage, mesh, shards_gradients=shards_gradients).run(plan, batch)
    return RankStep(
        loss=result.loss,
        gradients=whole_gradients(stage, keep=mesh.sp_rank == 0),
        message_count=mesh.channels.message_count - before,
        pass_count=len(result.spans),
        peak_bytes=result.peak_bytes,
        norm=clip_gradients(stage, mesh, max_norm=float("inf")),
    )


def whole_gradients(stage: Stage, *, keep: bool) -> dict[str, Tensor]:
    """Gather the gradients of a stage; all its ranks take part."""
    gradients = {}
    for name, parameter in stage.named_parameters():
        assert isinstance(parameter.grad, DTensor), f"{name} has no gradient"
        whole = parameter.grad.full_tensor()
        if keep:
            gradients[name] = whole
    return gradients


class LayerRun(NamedTuple):
    """A layer of a stage that ran forward: for which chunk, and within which pass of the chunk."""

    kind: ActionKind
    chunk: Chunk
    stage_layer: int


def count_layer_runs(
    config: ModelConfig, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch
) -> tuple[int, Counter[LayerRun]]:
    """Run one step; return the stage, and how often each of its layers ran forward, as hooks on the layers saw it."""
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    seen: Counter[LayerRun] = Counter()
    kind = ActionKind.BACKWARD  # whatever runs outside the forward pass of the stage

    def enter(*_: object) -> None:
        nonlocal kind
        kind = ActionKind.FORWARD

    def leave(*_: object) -> None:
        nonlocal kind
        kind = ActionKind.BACKWARD

    def count(stage_layer: int, args: tuple[Tensor, ChunkPass]) -> None:
        chunk = Chunk(tuple(placed.piece for placed in args[1].layout.slices))
        seen[LayerRun(kind, chunk, stage_layer)] += 1

    def hook_of(stage_layer: int) -> Callable[[nn.Module, tuple[Tensor, ChunkPass]], None]:
        return lambda _, args: count(stage_layer, args)

    stage.register_forward_pre_hook(enter)
    stage.register_forward_hook(leave)
    for stage_layer, layer in enumerate(stage.layers.values()):
        # Before the layer: a recompute stops as soon as it has what the backward pass needs.
        layer.register_forward_pre_hook(hook_of(stage_layer))
    StepRunner(stage, mesh).run(plan, batch)
    return mesh.pp_rank, seen


def count_collectives(
    config: ModelConfig,
    dp_size: int,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    shards_gradients: bool,
) -> Counter[str]:
    """Run one step and count the collectives that this rank took part in, by name."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    step_runner = StepRunner(
        build_stage(config, mesh, dtype=torch.float64, seed=SEED), mesh, shards_gradients=shards_gradients
    )
    counter = CollectiveCounter()
    with counter:
        step_runner.run(plan, batch)
    return counter.counts


class CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Counts collectives and messages by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func._opname.strip("_")] += 1
        return func(*args, **(kwargs or {}))


def train_steps(
    config: ModelConfig,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    count: int,
    shards_gradients: bool = True,
) -> list[tuple[float, float]]:
    """Train on the same batch many times; return loss and norm of the gradients of every step."""
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    return _train(StepRunner(stage, mesh, shards_gradients=shards_gradients), stage, mesh, plan, batch, count)


def _train(
    step_runner: StepRunner, stage: Stage, mesh: Mesh, plan: ExecutionPlan, batch: Batch, count: int
) -> list[tuple[float, float]]:
    optimizer = torch.optim.AdamW(stage.parameters(), lr=LEARNING_RATE)
    seen = []
    for _ in range(count):
        loss = step_runner.run(plan, batch).loss
        seen.append((loss, clip_gradients(stage, mesh, MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
    return seen


def train_replicas(
    config: ModelConfig, dp_size: int, pp_size: int, plan: ExecutionPlan, batch: Batch, count: int
) -> tuple[list[tuple[float, float]], str]:
    """Train on the same batch many times; return loss and norm of every step, and a hash of the last parameters."""
    mesh = mesh_of(pp_size, 1, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    seen = _train(StepRunner(stage, mesh), stage, mesh, plan, batch, count)
    digest = hashlib.sha256()
    for parameter in stage.parameters():
        assert isinstance(parameter, DTensor)
        digest.update(parameter.to_local().numpy(force=True).tobytes())
    return seen, digest.hexdigest()


def train_embeddings(
    config: ModelConfig, pp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch, count: int
) -> tuple[Tensor, Tensor]:
    """Train two stages of a tied model in fp32; return this rank's shard of the embedding before and after."""
    mesh = mesh_of(pp_size, sp_size)
    stage = build_stage(config, mesh, dtype=torch.float32, seed=SEED)
    runner = StepRunner(stage, mesh)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    assert stage.embedding is not None
    before = _own_part(stage.embedding.weight).clone()
    for _ in range(count):
        runner.run(plan, batch)
        clip_gradients(stage, mesh, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return before, _own_part(stage.embedding.weight)


def _own_part(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    own: Tensor = parameter.to_local()
    return own.detach()


def clip(
    config: ModelConfig,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    max_norm: float,
    dp_size: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, dict[str, Tensor]]:
    """Run a step and clip; return the norm before and the gradients after."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=dtype, seed=SEED)
    StepRunner(stage, mesh).run(plan, batch)
    norm = clip_gradients(stage, mesh, max_norm)
    return norm, whole_gradients(stage, keep=mesh.sp_rank == 0)


def run_step_while_one_dies(
    config: ModelConfig,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    victim: int,
    timeout_s: float,
    dp_size: int = 1,
) -> str:
    """Run a step without one rank, which is killed; return the error of the others."""
    mesh = mesh_of(pp_size, sp_size, timeout_s, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    dist.barrier()
    if mesh.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return _error_of(lambda: StepRunner(stage, mesh).run(plan, batch))


def run_step_in_small_buckets(
    limit_bytes: int, config: ModelConfig, dp_size: int, sp_size: int, plan: ExecutionPlan, batch: Batch
) -> RankStep:
    """Run a step on one stage whose replicas put at most so many bytes of gradients together."""
    with patch.object(replicas, "BUCKET_BYTES", limit_bytes):
        return run_step(config, 1, sp_size, plan, batch, dp_size=dp_size)


def run_step_without_sum(
    config: ModelConfig, plan: ExecutionPlan, batch: Batch, faulty_rank: int, timeout_s: float
) -> str:
    """Run a step on two replicas, one of which leaves out the sum over the replicas; return the error."""
    mesh = mesh_of(1, 1, timeout_s, dp_size=2)
    stage = build_stage(config, mesh, dtype=torch.float64, seed=SEED)
    leaves_out = mesh.rank == faulty_rank
    with patch.object(runner, "sum_over_replicas") if leaves_out else nullcontext():
        return _error_of(lambda: StepRunner(stage, mesh).run(plan, batch))


def exchange_round_trip(token_counts: list[int], heads: int, kv_heads: int) -> None:
    """Every rank gets its heads of all tokens, and the way back gives what went in, gradients too."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    assert group is not None
    for token_count in token_counts:
        shares = share_tokens(token_count, ranks)
        start = sum(shares[:rank])
        own = slice(start, start + shares[rank])
        everything = torch.randn(token_count, heads + 2 * kv_heads, 4, generator=torch.Generator().manual_seed(5))
        q, k, v = (part[own].requires_grad_() for part in torch.split(everything, [heads, kv_heads, kv_heads], dim=1))
        exchange = HeadExchange(group, tuple(shares), rank)

        own_q, own_k, own_v = exchange.tokens_to_heads(q, k, v)
        back = exchange.heads_to_tokens(own_q)
        torch.autograd.backward(back.sum() + own_k.sum() + own_v.sum())

        own_heads = range(rank * heads // ranks, (rank + 1) * heads // ranks)
        used = [head * kv_heads // heads for head in own_heads]
        whole_k = everything[:, heads : heads + kv_heads]
        assert torch.equal(own_q, everything[:, own_heads.start : own_heads.stop])
        assert torch.equal(own_k.repeat_interleave(len(used) // own_k.shape[1], dim=1), whole_k[:, used])
        assert torch.equal(back, q)
        assert q.grad is not None
        assert torch.equal(q.grad, torch.ones_like(q))
        assert k.grad is not None
        copies = own_k.shape[1] * ranks // kv_heads
        assert torch.equal(k.grad, torch.full_like(k, float(copies)))


def refusal_of_plan(config: ModelConfig, plan: ExecutionPlan, batch: Batch) -> str:
    """Run a plan that must be refused on one rank; return the error."""
    mesh = mesh_of(1, 1)
    step_runner = StepRunner(build_stage(config, mesh, dtype=torch.float64, seed=SEED), mesh)
    return _error_of(lambda: step_runner.run(plan, batch))


def refusal_of_layout(pp_size: int, sp_size: int) -> str:
    """Ask for a mesh that must be refused; return the error."""
    return _error_of(lambda: init_mesh(pp_size, sp_size, "cpu", GROUP_TIMEOUT_S))


def _error_of(run: Callable[[], object]) -> str:
    try:
        run()
    except ExecutorError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
