"""Most tokens of a packed chunk (paper, Alg. 1: T_m; the paper omits its expression)."""

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.profile import Profile
from infinipipe_planner.scheduling.window import window_size


def token_capacity(profile: Profile, chunk_count: int = 1) -> int:
    """Tokens that the tightest stage holds without any recompute (paper: the token capacity of Alg. 1).

    Args:
        profile: Cost model.
        chunk_count: Chunks of one size that share the memory; one of them runs at a time and needs more.

    Returns:
        At least 0. Unlimited memory per token is not a case: a token that costs nothing counts as one byte.
    """
    costs = CostModel(profile)
    running_bytes = costs.working_bytes(1) / chunk_count
    return int(
        min(
            max(profile.usable_memory_bytes - state_bytes, 0.0)
            / max(costs.full_activation_bytes(1, stage_index, keeps_kv=False) + running_bytes, 1.0)
            for stage_index, state_bytes in enumerate(profile.memory.model_state_bytes)
        )
    )


def token_threshold(profile: Profile, slice_count: int) -> int:
    """Tokens a packed chunk may have so that the widest window, that of stage 0, fits without recompute.

    It bounds packed chunks only. Slices of long sequences may be larger: how much of them is recomputed is for the
    solver to decide.
    """
    window = window_size(profile.cluster.pp_size, 0, slice_count)
    return max(token_capacity(profile, window) // window, 1)
