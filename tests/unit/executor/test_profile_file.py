"""A profile file is taken only if it is of the model and the layout of the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.model_memory import model_state_bytes
from infinipipe_executor.config import RunConfig, load_config
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.profile_file import read_profile
from support_e2e.runs import TINY, tiny_profile, write_run


def config_of(folder: Path) -> RunConfig:
    return load_config(write_run(folder))


def test_the_memory_is_that_of_the_configuration(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / "profile.json").write_text(profile_to_json(tiny_profile(2, 2, device_memory_bytes=7.0)))

    profile = read_profile(config, TINY, dtype_bytes=4)

    assert profile.cluster.device_memory_bytes == 2**20
    assert profile.model == tiny_profile(2, 2).model


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "layers", 8),
        ("model", "hidden", 64),
        ("model", "kv_dim", 32),
        ("model", "query_dim", 64),
        ("model", "ffn", 96),
        ("model", "vocab", 301),
        ("model", "dtype_bytes", 2),
        ("cluster", "sp_size", 4),
        ("cluster", "dp_size", 2),
    ],
)
def test_a_profile_of_another_model_or_layout_is_refused_with_the_key(
    tmp_path: Path, section: str, key: str, value: int
) -> None:
    config, profile = config_of(tmp_path), tiny_profile(2, 2)
    changes: dict[str, Any] = {section: replace(getattr(profile, section), **{key: value})}
    (tmp_path / "profile.json").write_text(profile_to_json(replace(profile, **changes)))

    with pytest.raises(ConfigError, match=rf"{section}\.{key} is {value}, the configuration makes it \d+"):
        read_profile(config, TINY, dtype_bytes=4)


def test_model_states_of_divided_gradients_are_refused_where_gradients_are_whole(tmp_path: Path) -> None:
    config = load_config(write_run(tmp_path, changes={"cluster": {"gradient_policy": "zero2"}}))
    profile = tiny_profile(2, 2)

    with pytest.raises(ConfigError, match=r"memory\.model_state_bytes\[0\] is \d+, .* \(\[cluster\] gradient_policy\)"):
        read_profile(config, TINY, dtype_bytes=4)

    whole = tuple(model_state_bytes(TINY.shape, 2, 2, stage, shards_gradients=False) for stage in range(2))
    enough = replace(profile, memory=replace(profile.memory, model_state_bytes=whole))
    (tmp_path / "profile.json").write_text(profile_to_json(enough))
    assert read_profile(config, TINY, dtype_bytes=4).memory.model_state_bytes == whole


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff\xfe\x00", "not UTF-8"), (b"[" * 200_000, "profile"), (b"{", "profile")]
)
def test_a_file_that_is_no_profile_is_said_in_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    config = config_of(tmp_path)
    (tmp_path / "profile.json").write_bytes(content)

    with pytest.raises(ConfigError, match=rf"profile\.json: .*{reason}.*\(\[planner\] profile\)"):
        read_profile(config, TINY, dtype_bytes=4)


def test_a_profile_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / "profile.json").unlink()

    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_profile(config, TINY, dtype_bytes=4)
