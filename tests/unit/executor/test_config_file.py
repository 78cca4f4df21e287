"""The configuration of a run is checked strictly; every refusal says where the fault is and what was meant."""

from pathlib import Path

import pytest

from infinipipe_executor.config import RunConfig, load_config
from infinipipe_executor.errors import ConfigError

GOOD = """
[job]
name = "run"
steps = 3

[model]
layers = 4
hidden = 32
heads = 4
kv_heads = 2
head_dim = 8
ffn = 64
vocab = 300

[data]
corpus = "texts"
cache = "cache"
context_tokens = 64
beyond_context = "truncate"
sequences_per_batch = 4

[cluster]
pp_size = 2
sp_size = 2
device_memory_mib = 8

[optimizer]
learning_rate = 1e-3
"""


def load(folder: Path, text: str) -> RunConfig:
    path = folder / "run.toml"
    path.write_text(text)
    return load_config(path)


def test_a_good_file_is_read_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)

    assert config.job.steps == 3
    assert config.optimizer.learning_rate == 1e-3
    assert config.data.corpus == tmp_path / "texts"
    assert config.cluster.device_memory_bytes == 8 * 2**20


def test_lists_of_the_file_are_read(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD + "betas = [0.8, 0.9]\n")

    assert config.optimizer.betas == (0.8, 0.9)


def test_a_whole_number_is_a_fine_value_for_a_real_one(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).cluster.device_memory_mib == 8.0


def test_the_profile_is_a_file_beside_the_configuration_or_the_word_measure(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).planner.profile == "measure"
    assert load(tmp_path, GOOD + '[planner]\nprofile = "p.json"\n').planner.profile == str(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("learning_rate", "learning_rat", ["[optimizer]", "'learning_rat'", "did you mean 'learning_rate'"]),
        ("[optimizer]", "[optimiser]", ["[optimiser]", "did you mean [optimizer]"]),
        ("steps = 3", "steps = 3\nlearning_rate = 1e-4", ["[job]", "'learning_rate'", "belongs in [optimizer]"]),
        ("[job]", "context_tokens = 5\n[job]", ["'context_tokens'", "belongs in [data]"]),
        ("1e-3", '"5e-5"', ["[optimizer] learning_rate", "'5e-5'", "number"]),
        ("steps = 3", "steps = 3.0", ["[job] steps", "3.0", "integer"]),
        ("steps = 3", "steps = 0", ["[job] steps", "0", "greater than or equal to 1"]),
        ("steps = 3", "steps = true", ["[job] steps", "True", "integer"]),
        ("steps = 3\n", "", ["[job] steps is missing"]),
        ('"truncate"', '"cut"', ["[data] beyond_context", "'cut'", "'truncate'", "'error'"]),
        ("1e-3", "inf", ["[optimizer] learning_rate", "inf", "finite"]),
        ("1e-3", "1e-3\nbetas = [0.9]", ["[optimizer] betas"]),
        ('corpus = "texts"', "corpus = 5", ["[data] corpus", "5"]),
        ("steps = 3", "steps = 3\nsteps = 4", ["line 5"]),
        ("steps = 3", "steps = ", ["line 4"]),
    ],
)
def test_a_fault_is_named_with_its_section_key_and_value(
    tmp_path: Path, old: str, new: str, expected: list[str]
) -> None:
    assert GOOD.count(old) == 1

    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD.replace(old, new))

    message = str(caught.value)
    assert str(tmp_path / "run.toml") in message
    assert "\n" not in message
    for words in expected:
        assert words in message


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("steps = 3", "step = 3").replace("1e-3", '"1e-3"')

    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)

    for words in ("[job] steps is missing", "did you mean 'steps'", "[optimizer] learning_rate"):
        assert words in str(caught.value)


def test_a_file_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.toml")
