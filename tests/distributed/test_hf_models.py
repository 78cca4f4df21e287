"""Models from Hugging Face folders: in our stages and back out they give the logits that transformers gives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.model.export import export_checkpoint
from infinipipe_executor.model.source import open_model
from infinipipe_executor.model.stage import parameter_shapes
from support_executor.closeness import relative_error
from support_executor.groups import GroupPool
from support_executor.hf_models import MODELS, hf_logits, save_random_model
from support_executor.hf_ranks import logits_of_source, reads_of_source, train_and_save
from support_executor.hf_runs import run_config
from support_executor.plans import chunk, cut, make_batch, make_plan

TOLERANCE = 1e-5
"""In fp32, relative to the largest logit."""

BATCH = make_batch([29, 11])
SEQUENCES = [sequence.token_ids for sequence in BATCH.sequences]
STEPS = 3


def plan_of(pp_size: int) -> ExecutionPlan:
    """Two slices of one sequence, then the other one whole: the rows of all chunks lie in the order of the batch."""
    return make_plan([[*map(chunk, cut(0, 17, 12)), chunk(*cut(1, 11))]], pp_size, BATCH)


def join(rows_of_ranks: list[Tensor], sp_size: int) -> Tensor:
    """Join the logits of the ranks of the last stage, whose shares follow each other within every chunk."""
    chunks: list[Tensor] = []
    starts = [0] * sp_size
    for tokens in (17, 12, 11):
        for place, rows in enumerate(rows_of_ranks[-sp_size:]):
            share = tokens // sp_size + (place < tokens % sp_size)
            chunks.append(rows[starts[place] : starts[place] + share])
            starts[place] += share
    return torch.cat(chunks)


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize(("pp_size", "sp_size"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_loaded_model_gives_the_logits_of_transformers(
    groups: GroupPool, tmp_path: Path, name: str, pp_size: int, sp_size: int
) -> None:
    model = save_random_model(name, tmp_path, shard_size="20KB")

    source = open_model(run_config(tmp_path))
    rows = groups.run(pp_size * sp_size, logits_of_source, source, pp_size, sp_size, plan_of(pp_size), BATCH)

    assert relative_error(join(rows, sp_size), hf_logits(model, SEQUENCES)) <= TOLERANCE


def test_every_rank_reads_its_own_rows_and_all_ranks_together_the_model_once(groups: GroupPool, tmp_path: Path) -> None:
    save_random_model("qwen 2", tmp_path)
    source = open_model(run_config(tmp_path))

    reads = [read for rank in groups.run(4, reads_of_source, source, 2, 2) for read in rank]

    read_rows: dict[str, list[int]] = {}
    for name, start, stop in reads:
        read_rows.setdefault(name, []).extend(range(start, stop))
    for name, shape in parameter_shapes(source.config).items():
        assert sorted(read_rows[name]) == list(range(shape[0])), name


def test_a_trained_model_is_exported_and_gives_the_same_logits_in_transformers(
    groups: GroupPool, tmp_path: Path, name: str
) -> None:
    # A stage of its own for every layer, or stages of two ranks.
    pp_size, sp_size = (4, 1) if "tied" in name else (2, 2)
    original = save_random_model(name, tmp_path / "original", num_hidden_layers=4)
    source = open_model(run_config(tmp_path / "original"))

    rows = groups.run(4, train_and_save, source, pp_size, sp_size, plan_of(pp_size), BATCH, STEPS, tmp_path / "step-3")
    export_checkpoint(tmp_path / "step-3", tmp_path / "exported", tell=lambda _: None, file_bytes=20_000)

    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    trained = join(rows, sp_size)
    assert relative_error(hf_logits(exported, SEQUENCES), trained) <= TOLERANCE
    assert relative_error(hf_logits(original, SEQUENCES), trained) > 100 * TOLERANCE
