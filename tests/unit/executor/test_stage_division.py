"""Which layers a stage holds is said in the configuration, in the profile file, or follows from costs."""

from dataclasses import replace
from pathlib import Path

import pytest

from infinipipe_executor.config import ClusterConfig, load_config
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.stage_division import check_stage_layers, divide_stages
from support_e2e.runs import TINY, tiny_profile, write_run

MODEL = ModelConfig(layers=8, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=160, vocab=8192)


def cluster_of(stage_layers: tuple[int, ...] | None = None, device_memory_mib: float = 1024.0) -> ClusterConfig:
    return ClusterConfig(pp_size=2, sp_size=1, device_memory_mib=device_memory_mib, stage_layers=stage_layers)


def test_by_cost_the_last_stage_gives_layers_up_for_the_head_and_the_line_says_why() -> None:
    # The projection is worth 12 layers without attention, 2 with that much of it.
    division = divide_stages(cluster_of(), MODEL, None, attended_tokens=1500.0)

    assert division.stage_layers == (5, 3)
    assert str(division) == (
        "stages of 5 and 3 layers: by cost, the head counts as 2.0 layers where a token attends to 1,500 tokens"
    )
    assert divide_stages(cluster_of(), MODEL, None, attended_tokens=1e6).stage_layers == (4, 4)


def test_layers_whose_states_do_not_fit_stay_off_a_stage() -> None:
    # The embedding takes 8 MiB of states, a layer 0.66 MiB.
    assert divide_stages(cluster_of(device_memory_mib=12.1), MODEL, None, 1500.0).stage_layers == (4, 4)


def test_the_configuration_and_the_profile_file_come_first() -> None:
    profile = replace(tiny_profile(2, 1), layer_division=(1, 3))

    assert divide_stages(cluster_of((2, 6)), MODEL, None, 1.0).stage_layers == (2, 6)
    assert divide_stages(cluster_of(), TINY, profile, 1.0).stage_layers == (1, 3)
    assert divide_stages(cluster_of(), TINY, tiny_profile(2, 1), 1.0).stage_layers == (2, 2)


@pytest.mark.parametrize(
    ("stage_layers", "sentence"),
    [
        ((4,), r"\[cluster\] stage_layers is \[4\]: it must have one entry a stage, which makes 2"),
        ((3, 2), r"stage_layers is \[3, 2\], 5 in sum: it must be 4 in sum \(\[model\] layers\)"),
        ((3, 1), r"stage_layers is \[3, 1\], but the profile is of stages of \[2, 2\] \(\[planner\] profile\)"),
    ],
)
def test_a_division_that_does_not_fit_is_refused_in_a_sentence(stage_layers: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_stage_layers(cluster_of(stage_layers), TINY, tiny_profile(2, 1))


def test_the_file_takes_a_list_and_refuses_a_stage_without_layers(tmp_path: Path) -> None:
    config = load_config(write_run(tmp_path, changes={"cluster": {"stage_layers": [3, 1]}}))
    assert config.cluster.stage_layers == (3, 1)

    with pytest.raises(ConfigError, match=r"\[cluster\] stage_layers is 0"):
        load_config(write_run(tmp_path / "zero", changes={"cluster": {"stage_layers": [4, 0]}}))


def test_the_corpus_tells_what_its_tokens_attend_to(tmp_path: Path) -> None:
    corpus = open_corpus(load_config(write_run(tmp_path)).data, TINY.vocab)

    lengths = [len(corpus.sequence(index).token_ids) for index in range(len(corpus))]
    assert corpus.mean_attended_tokens == pytest.approx(sum(n * n for n in lengths) / (2 * sum(lengths)))
