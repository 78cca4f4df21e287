"""A profile for the tiny model: times that only need to be plausible, memory as the executor counts it."""

from infinipipe_contract.model_memory import logits_bytes, model_state_bytes, token_bytes
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_executor.model.config import ModelConfig

FP64_BYTES = 8


def make_profile(
    config: ModelConfig, pp_size: int, sp_size: int, *, activation_bytes: float = 1e12, dp_size: int = 1
) -> Profile:
    """Profile in fp64.

    Args:
        config: Sizes of the model.
        pp_size: Stages.
        sp_size: Ranks of one stage.
        activation_bytes: What the fullest stage may hold besides its model states.
        dp_size: Replicas of the pipeline.
    """
    states = tuple(model_state_bytes(config.shape, pp_size, sp_size, p, FP64_BYTES) for p in range(pp_size))
    return Profile(
        name="tiny",
        model=ModelShape(config.layers, config.hidden, config.kv_dim, config.ffn, config.vocab, FP64_BYTES),
        cluster=Cluster(pp_size, sp_size, max(states) + activation_bytes, 1.0, dp_size),
        forward=ComputeCost(1e-7, 1e-5, 1e-4),
        backward=ComputeCost(2e-7, 2e-5, 1e-4),
        all2all=LinkCost(1e9, 1e-5),
        p2p=LinkCost(1e9, 1e-5),
        param_gather_s=(1e-5,) * pp_size,
        memory=MemoryCost(
            token_bytes(config.shape, FP64_BYTES, sp_size), logits_bytes(config.shape, FP64_BYTES), states
        ),
    )
