"""A whole run that starts from a Hugging Face folder."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from infinipipe_executor.config import load_config
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.data.tokenizer import train_tokenizer
from infinipipe_executor.model.source import data_of_model, open_model
from support_e2e.runs import planner_process, torchrun, write_run
from support_executor.hf_models import save_random_model

pytestmark = pytest.mark.e2e


def test_the_first_loss_of_a_run_is_that_of_transformers_and_the_loss_falls(tmp_path: Path) -> None:
    model = save_random_model("qwen 3, tied", tmp_path / "model", vocab_size=300)
    train_tokenizer(["alpha beta gamma delta"], 260).save(str(tmp_path / "model" / "tokenizer.json"))
    changes: dict[str, dict[str, object]] = {
        "job": {"steps": 3},
        "data": {"context_tokens": 64},
        "cluster": {"device_memory_mib": 4.0},
        "planner": {"profile": "measure"},
    }
    path = write_run(tmp_path, sp_size=1, changes=changes, model=tmp_path / "model")

    with planner_process() as address:
        ended = torchrun(path, address, ranks=2)

    assert ended.code == 0, ended.output
    assert f"model: {tmp_path / 'model'} (qwen3), 35 tensors in one file" in ended.output
    losses = [float(loss) for loss in re.findall(r"^step .*  loss (\d+\.\d{4}) ", ended.output, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]

    config = load_config(path)
    corpus = open_corpus(data_of_model(config), open_model(config).config.vocab)
    sampler = BatchSampler(len(corpus), config.data.sequences_per_batch, config.job.seed)
    loss, target_count = 0.0, 0
    for sequence in map(corpus.sequence, sampler.indices(0)):
        with torch.no_grad():
            logits = model(sequence.token_ids[None]).logits[0]
        loss += functional.cross_entropy(logits, sequence.target_ids, reduction="sum", ignore_index=-100).item()
        target_count += int((sequence.target_ids != -100).sum())
    assert losses[0] == pytest.approx(loss / target_count, abs=1e-4)
