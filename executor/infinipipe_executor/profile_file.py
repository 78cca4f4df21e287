"""Profile file: a cost model that was written before, in place of one measured at the start."""

from dataclasses import replace
from pathlib import Path

from infinipipe_contract.codec import profile_from_json
from infinipipe_contract.errors import InvalidProfileError
from infinipipe_contract.model_memory import held_kv_dim, model_state_bytes
from infinipipe_contract.profile import Profile
from infinipipe_executor.config import RunConfig
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.config import ModelConfig


def read_profile(config: RunConfig, model: ModelConfig, dtype_bytes: int, path: Path | None = None) -> Profile:
    """Read the profile file of a run and make sure that it is of this model and layout.

    Args:
        config: The run; the memory of its devices takes the place of that in the file.
        model: Sizes of the model.
        dtype_bytes: Bytes of one activation element.
        path: The file; None for that of the configuration.

    Raises:
        ConfigError: If the file cannot be read, is no profile, or is one of another model or layout; names the key.
    """
    path = path or Path(config.planner.profile)
    try:
        profile = profile_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"profile {path} cannot be read: {error.strerror} ([planner] profile)") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error}) ([planner] profile)") from error
    except InvalidProfileError as error:
        raise ConfigError(f"{path}: {error} ([planner] profile)") from error
    cluster = config.cluster
    for key, had, wanted in (
        ("cluster.dp_size", profile.cluster.dp_size, cluster.dp_size),
        ("cluster.pp_size", profile.cluster.pp_size, cluster.pp_size),
        ("cluster.sp_size", profile.cluster.sp_size, cluster.sp_size),
        ("model.layers", profile.model.layers, model.layers),
        ("model.hidden", profile.model.hidden, model.hidden),
        ("model.kv_dim", profile.model.kv_dim, held_kv_dim(model.shape, cluster.sp_size)),
        ("model.query_dim", profile.model.query_dim or profile.model.hidden, model.query_dim),
        ("model.ffn", profile.model.ffn, model.ffn),
        ("model.vocab", profile.model.vocab, model.vocab),
        ("model.dtype_bytes", profile.model.dtype_bytes, dtype_bytes),
    ):
        if had != wanted:
            raise ConfigError(f"{path}: {key} is {had}, the configuration makes it {wanted} ([planner] profile)")
    _check_states(path, config, model, profile)
    return replace(
        profile,
        cluster=replace(
            profile.cluster,
            device_memory_bytes=cluster.device_memory_bytes,
            usable_memory_ratio=cluster.usable_memory_ratio,
        ),
    )


def _check_states(path: Path, config: RunConfig, model: ModelConfig, profile: Profile) -> None:
    """Refuse model states of divided gradients for a run that holds whole ones: plans would not fit."""
    cluster = config.cluster
    if cluster.shards_gradients:
        return
    for stage_index, state_bytes in enumerate(profile.memory.model_state_bytes):
        held_bytes = model_state_bytes(
            model.shape,
            cluster.pp_size,
            cluster.sp_size,
            stage_index,
            shards_gradients=False,
            stage_layers=profile.stage_layers,
        )
        if state_bytes < held_bytes:
            raise ConfigError(
                f"{path}: memory.model_state_bytes[{stage_index}] is {state_bytes:.0f}, but under zero2 a device of "
                f"this stage holds {held_bytes:.0f} at least ([cluster] gradient_policy)"
            )
