"""The part of the model that one stage holds, and its sharding over the ranks of the stage.

Parameters are sharded (ZeRO-3): gathered for a layer's passes and freed after each. Gradients are reduced after every
chunk, or once a step, as ``reduce_in_next_backward`` says. All ranks of a stage work on the same loss, so gradients are
summed, never averaged. Replicas of the pipeline are none of the sharding's business.
"""

import hashlib
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from infinipipe_contract.stages import divide_layers
from infinipipe_executor.data.batch import IGNORE_TARGET
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig, check_layout
from infinipipe_executor.model.hf_weights import HfWeights
from infinipipe_executor.model.layer import Layer, RmsNorm
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_executor.recompute import run_recomputed
from infinipipe_kernels.cross_entropy import cross_entropy_

_INIT_STD = 0.02


class Stage(nn.Module):
    """Layers of one stage; the first stage embeds, the last one normalises and predicts.

    Parameter names are those of the whole model (``layers.<index in the model>...``), on every layout. A head that is
    the embedding has the embedding's name; where the first and the last stage are two, the last one holds a copy under
    that name, which ``parallel.tied`` keeps identical.

    Args:
        config: Sizes of the model.
        pp_size: Stages.
        stage_index: 0-based stage.
        dtype: Type of the activations.
        stage_layers: Layers of every stage; None divides them evenly.

    Raises:
        LayoutError: If the layers cannot be divided among the stages.
    """

    def __init__(
        self,
        config: ModelConfig,
        pp_size: int,
        stage_index: int,
        dtype: torch.dtype,
        stage_layers: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_layout(config, pp_size, sp_size=1)
        self.config = config
        self.dtype = dtype
        self.is_first, self.is_last = stage_index == 0, stage_index == pp_size - 1
        has_embedding = self.is_first or (self.is_last and config.ties_embeddings)
        stage_layers = stage_layers or divide_layers(config.layers, pp_size)
        first_layer = sum(stage_layers[:stage_index])
        self.embedding = nn.Embedding(config.vocab, config.hidden) if has_embedding else None
        self.layers = nn.ModuleDict(
            {str(first_layer + index): Layer(config, index) for index in range(stage_layers[stage_index])}
        )
        self.norm = RmsNorm(config.hidden, config.norm_eps) if self.is_last else None
        has_head = self.is_last and not config.ties_embeddings
        self.head = nn.Linear(config.hidden, config.vocab, bias=False) if has_head else None

    def forward(self, x: Tensor, chunk_pass: ChunkPass) -> Tensor:
        """Run this rank's share of a chunk through the stage.

        Args:
            x: Token ids, int64 ``[tokens]``, on the first stage; else activations ``[tokens, hidden]``.
            chunk_pass: The chunk.

        Returns:
            Activations ``[tokens, hidden]``; on the last stage the loss, z-loss included: a scalar, this rank's part of
            the job's.
        """
        if self.is_first and self.embedding is not None:
            x = self.embedding(x)
        for index, layer in enumerate(self.layers.values()):
            assert isinstance(layer, Layer)
            if index < chunk_pass.recompute_layer_count:
                x = run_recomputed(layer, x, chunk_pass, has_dropout=self.config.dropout > 0)
            else:
                x = layer(x, chunk_pass)
        if self.norm is None:
            return x
        return cross_entropy_(
            self._logits(self.norm(x)),
            chunk_pass.target_ids,
            chunk_pass.loss_scale,
            IGNORE_TARGET,
            z_loss=chunk_pass.z_loss,
            z_sum=chunk_pass.z_sum,
        )

    def _logits(self, x: Tensor) -> Tensor:
        if self.head is not None:
            return cast("Tensor", self.head(x))
        assert self.embedding is not None, "a stage without a head of its own has the embedding"
        return functional.linear(x, self.embedding.weight)


def parameter_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Name the parameters of the whole model, with their shapes."""
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in Stage(config, 1, 0, torch.float32).named_parameters()}


def build_stage(
    config: ModelConfig,
    mesh: Mesh,
    *,
    dtype: torch.dtype,
    seed: int,
    weights: HfWeights | None = None,
    stage_layers: Sequence[int] | None = None,
) -> Stage:
    """Build this rank's stage with its first weights, sharded over the ranks of the stage.

    Args:
        config: Sizes of the model.
        mesh: Where this rank stands.
        dtype: Type of the computation. In bf16 and fp16, parameters and the reduction of gradients stay fp32.
        seed: Seed of the weights; the same seed gives the same model on every layout.
        weights: Weights of a folder in place of drawn ones; every rank reads its own shard.
        stage_layers: Layers of every stage; None divides them evenly.

    Raises:
        LayoutError: If the model cannot be divided among these stages and ranks.
        ConfigError: If attention on the device does not take the type or the width of the heads, or a file with weights
            cannot be read.
    """
    check_layout(config, mesh.pp_size, mesh.sp_size)
    check_device(config, mesh.device.type, dtype)
    state_dtype = torch.promote_types(dtype, torch.float32)
    with torch.device("meta"):
        stage = Stage(config, mesh.pp_size, mesh.pp_rank, dtype, stage_layers).to(state_dtype)
    _shard(stage, mesh, dtype, state_dtype)
    stage.to_empty(device=mesh.device)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if weights is None:
                _fill(parameter, initial_parameter(name, parameter.shape, seed))
            else:
                _read(parameter, name, weights)
    return stage


def reduce_in_next_backward(stage: Stage, *, reduces: bool) -> None:
    """Choose what the next backward pass does with its gradients.

    Args:
        stage: From ``build_stage``.
        reduces: True: sum them over the ranks of the stage, together with what was added up before, and keep this
            rank's shard. False: only add them to the gradients of the whole stage, which every rank then holds.
    """
    assert isinstance(stage, FSDPModule), "the stage is sharded"
    stage.set_requires_gradient_sync(reduces)


def gather_ahead(stage: Stage, *, backward: bool) -> None:
    """Start to gather what the next pass needs first; it goes on while the stage waits for the chunk's message.

    That is one layer and what lies outside of the layers: less than a pass holds at any time.

    Args:
        stage: From ``build_stage``; it has run forward before.
        backward: Whether the next pass is a backward pass, which starts with the last layer.
    """
    layers = list(stage.layers.values())
    for module in (stage, layers[-1] if backward else layers[0]):
        assert isinstance(module, FSDPModule), "the stage is sharded"
        module.unshard(async_op=True)


def check_device(config: ModelConfig, device_type: str, dtype: torch.dtype) -> None:
    """Refuse what attention on a device does not take.

    Raises:
        ConfigError: With the key, the value and what is taken.
    """
    if device_type != "cuda":
        return
    if dtype not in (torch.bfloat16, torch.float16):
        raise ConfigError(f"model.dtype is {str(dtype).removeprefix('torch.')}, on cuda it must be bfloat16 or float16")
    if config.head_dim % 8 or config.head_dim > 256:
        raise ConfigError(f"model.head_dim is {config.head_dim}, on cuda it must be a multiple of 8, at most 256")


def initial_parameter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Draw the first value of a parameter from the seed and its name alone, so that no layout changes it.

    Args:
        name: Name in the whole model, such as ``layers.3.attention.q.weight``.
        shape: Shape of the whole parameter; of those with one dimension, biases start at 0 and norms at 1.
        seed: Seed of the model.

    Returns:
        fp32, on the CPU.
    """
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
    return torch.empty(shape).normal_(0.0, _INIT_STD, generator=generator)


def _shard(stage: Stage, mesh: Mesh, dtype: torch.dtype, state_dtype: torch.dtype) -> None:
    sp_mesh = mesh.device_mesh["sp"]
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if dtype != state_dtype else None,
        reduce_dtype=state_dtype if dtype != state_dtype else None,
    )
    layers = [
        fully_shard(layer, mesh=sp_mesh, reshard_after_forward=True, mp_policy=policy)
        for layer in stage.layers.values()
    ]
    _prefetch_in_order(fully_shard(stage, mesh=sp_mesh, reshard_after_forward=True, mp_policy=policy), layers)
    for module in stage.modules():
        if isinstance(
            module, FSDPModule
        ):  # neither setting reaches the modules below: on the root alone, layers average
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _prefetch_in_order(stage: FSDPModule, layers: list[FSDPModule]) -> None:
    """While one layer computes, gather the next one, and no other; ``gathered_bytes`` of the contract counts two.

    Left alone, the sharding goes by the order in which layers last ran, which is not the order of passes where several
    chunks are on their way. What lies outside of the layers is gathered throughout a pass, so behind the last layer
    there is nothing left to gather.
    """
    modules = [stage, *layers]
    for index, module in enumerate(modules):
        module.set_modules_to_forward_prefetch(modules[index + 1 : index + 2])
        module.set_modules_to_backward_prefetch([modules[index - 1]])


def _fill(parameter: nn.Parameter, value: Tensor) -> None:
    """Copy this rank's part of a whole value into a sharded parameter, without communication."""
    assert isinstance(parameter, DTensor)
    whole = value.to(dtype=parameter.dtype, device=parameter.device)
    part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.to_local().copy_(part.to_local())


def _read(parameter: nn.Parameter, name: str, weights: HfWeights) -> None:
    """Read this rank's rows of a sharded parameter."""
    assert isinstance(parameter, DTensor)
    all_rows = torch.arange(parameter.shape[0], device=parameter.device)
    rows = distribute_tensor(all_rows, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
    if len(rows):
        parameter.to_local().copy_(weights.read_rows(name, int(rows[0]), int(rows[-1]) + 1))
