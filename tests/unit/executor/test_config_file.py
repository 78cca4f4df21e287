"""The configuration of a run is checked strictly; every refusal says where the fault is and what was meant."""

from pathlib import Path

import pytest

from infinipipe_executor.config import RunConfig, check_address, load_config
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
        ("steps = 3", "steps = " + "[" * 9999, ["nested too deeply"]),
        ("steps = 3", "steps = " + "9" * 3000, ["[job] steps is 99", "...: input should be less than or equal to"]),
        ("steps = 3", f"steps = 3\nseed = {2**70}", ["[job] seed", "less than or equal to 4294967295"]),
        ("_tokens = 64", f"_tokens = {2**80}", ["[data] context_tokens", "less than or equal to 2147483647"]),
        ("_tokens = 64", "_tokens = 1", ["[data] context_tokens", "greater than or equal to 2"]),
        ("sp_size = 2", "sp_size = 2\ncollective_timeout_s = 1e300", ["timeout_s", "less than or equal to 604800"]),
        ("1e-3", "1e-3\n[planner]\nwait_timeout_s = 1e300", ["wait_timeout_s", "less than or equal to 604800"]),
        ("1e-3", "1e-3\n[planner]\nconnect_timeout_s = 1e300", ["connect_timeout_s", "or equal to 604800"]),
        (
            '"texts"',
            '"texts"\nexclude = "test"',
            ["[data] exclude is 'test': it must be a list, for example [\"test\"]"],
        ),
        ("1e-3", "1e-3\nbetas = [0.9]", ["[optimizer] betas has too few values"]),
        ("1e-3", "1e-3\nbetas = [0.9, 0.9, 0.9]", ["[optimizer] betas", "it must have 2 values"]),
        ("corpus = ", "corpus = 5 #", ["[data] corpus is 5: it must be a text that names a file or a folder"]),
        ('"texts"', '"texts"\npattern = "/etc/*"', ["[data] pattern is '/etc/*'", "below the corpus"]),
        ('"texts"', '"texts"\npattern = "../*"', ["[data] pattern is '../*'", "below the corpus"]),
        ('"texts"', '"texts"\npattern = ""', ["[data] pattern is ''", "no pattern of file names"]),
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


def test_a_key_in_the_place_of_a_section_is_said(tmp_path: Path) -> None:
    text = "optimizer = 5\n" + GOOD.replace("[optimizer]\nlearning_rate = 1e-3", "")

    with pytest.raises(ConfigError, match=r"\[optimizer\] is 5: it must be a section with keys of its own"):
        load(tmp_path, text)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "planner.cluster:50051", "[::1]:65535"])
def test_addresses_of_a_planner(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:99999", "the port must be a number from 1 to 65535"),
        ("127.0.0.1:0", "the port must be a number from 1 to 65535"),
        ("host:" + "9" * 5000, "the port must be a number from 1 to 65535"),
        ("host:٣", "the port must be a number from 1 to 65535"),
        ("host name:5", "is not HOST:PORT"),
        ("::1:5", "is not HOST:PORT"),
        (":5", "is not HOST:PORT"),
        ("host", "is not HOST:PORT"),
        ("host:port", "is not HOST:PORT"),
    ],
)
def test_what_cannot_be_the_address_of_a_planner_is_refused(address: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_address(address)
