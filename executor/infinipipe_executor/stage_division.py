"""How the layers of the job are divided among its stages, and why; known before any stage is built.

The same configuration and corpus give the same division. Parameters are named as in the whole model, so no division
changes what they are called.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from infinipipe_contract.model_flops import head_layers
from infinipipe_contract.model_memory import most_stage_layers
from infinipipe_contract.profile import Profile
from infinipipe_contract.stages import divide_layers_by_cost
from infinipipe_executor.config import ClusterConfig
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.parallel.peers import peers_watched


@dataclass(frozen=True, slots=True)
class StageDivision:
    """Layers of every stage, and why they are divided like that."""

    stage_layers: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        """Write one line for people."""
        if len(self.stage_layers) == 1:
            return f"one stage of {self.stage_layers[0]} layers"
        *others, last = map(str, self.stage_layers)
        return f"stages of {', '.join(others)} and {last} layers: {self.reason}"


def check_stage_layers(cluster: ClusterConfig, model: ModelConfig, profile: Profile | None) -> None:
    """Refuse a division in the configuration that the model, the layout or the profile file does not allow.

    Raises:
        ConfigError: With the key, the value and what is wrong with it.
    """
    given = cluster.stage_layers
    if given is None:
        return
    shown = f"[cluster] stage_layers is {list(given)}"
    if len(given) != cluster.pp_size:
        raise ConfigError(f"{shown}: it must have one entry a stage, which makes {cluster.pp_size} ([cluster] pp_size)")
    if sum(given) != model.layers:
        raise ConfigError(f"{shown}, {sum(given)} in sum: it must be {model.layers} in sum ([model] layers)")
    if profile is not None and profile.stage_layers != given:
        raise ConfigError(f"{shown}, but the profile is of stages of {list(profile.stage_layers)} ([planner] profile)")


def divide_stages(
    cluster: ClusterConfig, model: ModelConfig, profile: Profile | None, attended_tokens: float
) -> StageDivision:
    """Choose the layers of every stage.

    Args:
        cluster: Sizes of the cluster, as ``check_stage_layers`` accepts them; a division given there is taken.
        model: Sizes of the model.
        profile: A profile that was written before, whose division is taken; None where this machine is measured.
        attended_tokens: Tokens that a token of the corpus attends to in the mean.
    """
    if cluster.stage_layers is not None:
        return StageDivision(cluster.stage_layers, "[cluster] stage_layers")
    if profile is not None:
        return StageDivision(profile.stage_layers, "the profile's ([planner] profile)")
    head = head_layers(model.shape, attended_tokens)
    usable_bytes = cluster.device_memory_bytes * cluster.usable_memory_ratio
    limits = most_stage_layers(
        model.shape, cluster.pp_size, cluster.sp_size, usable_bytes, shards_gradients=cluster.shards_gradients
    )
    stage_layers = divide_layers_by_cost(model.layers, cluster.pp_size, head, limits)
    reason = f"by cost, the head counts as {head:.1f} layers where a token attends to {attended_tokens:,.0f} tokens"
    return StageDivision(stage_layers, reason)


def share_division(stage_layers: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
    """Take the division of rank 0 on all ranks; a collective.

    Ranks that see other corpora are told so when batches are compared; until then no layer is missing or there twice.
    """
    shared = torch.tensor(stage_layers, dtype=torch.int64, device=mesh.device)
    with peers_watched(mesh.rank, "the division of the layers"):
        dist.broadcast(shared, src=0)
    return tuple(int(count) for count in shared.tolist())
