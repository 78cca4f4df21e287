"""A real run: planning service, torchrun, four workers, text files; nothing is replaced."""

import re
from pathlib import Path

import grpc
import pytest
import torch

from infinipipe.planner.v1 import planner_service_pb2 as pb
from infinipipe.planner.v1 import planner_service_pb2_grpc
from infinipipe_executor.config import load_config
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.model.source import open_model
from support_e2e.runs import TINY, Sections, planner_process, torchrun, write_run
from support_executor.corpora import write_jsonl
from support_executor.reference import reference_step

pytestmark = pytest.mark.e2e

STEP_LINE = re.compile(
    r"^step +(\d+) of 8  loss (\d+\.\d{4})  grad norm \d+\.\d{3}  learning rate 1\.00e-02  tokens \d+"
    r"  chunks \d+b/\d+s/\d+h  K \d+  pipelines \d+  recompute \d+ layers  predicted \d+\.\d\d s  measured \d+\.\d\d s"
    r"  bubble \d+%/\d+%  plan wait \d+\.\d s  \d+ tokens/s  \S+ TFLOP/s a device$",
    re.MULTILINE,
)


def reference_batch(config_path: Path, step: int) -> Batch:
    config = load_config(config_path)
    corpus = open_corpus(config.data, open_model(config).config.vocab)
    sampler = BatchSampler(len(corpus), config.data.sequences_per_batch, config.job.seed)
    return Batch(tuple(corpus.sequence(index) for index in sampler.indices(step)))


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("sequences_per_batch", [6, 1], ids=["shared", "one replica is empty"])
def test_two_replicas_train_on_text_like_one_process_would(tmp_path: Path, sequences_per_batch: int) -> None:
    changes: Sections = {
        "job": {"steps": 3},
        "data": {"sequences_per_batch": sequences_per_batch},
        "cluster": {"device_memory_mib": 4.0},  # a device holds the whole model
    }
    config = write_run(tmp_path, dp_size=2, pp_size=1, sp_size=1, changes=changes)

    with planner_process() as address:
        ended = torchrun(config, address, ranks=2, module=("support_e2e.recording_worker", str(tmp_path)))
        assert ended.code == 0, ended.output
        with grpc.insecure_channel(address) as channel:
            stub = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer = stub.GetPlan(pb.GetPlanRequest(job="tiny", generation=1, step=0), timeout=10)

    busy = {pipeline.replica_index for pipeline in answer.plan.pipelines}
    assert len(busy) == min(2, sequences_per_batch)
    expected = reference_step(TINY, 3, reference_batch(config, 0))
    assert [(report.rank, report.replica_index) for report in sorted(answer.reports, key=lambda one: one.rank)] == [
        (0, 0),
        (1, 1),
    ]
    for report in answer.reports:
        assert report.loss == pytest.approx(expected.loss, rel=1e-5)
        assert bool(report.actions) == (report.replica_index in busy)
    for rank in range(2):
        gradients = torch.load(tmp_path / f"gradients-{rank}.pt")
        assert gradients.keys() == expected.gradients.keys()
        for name, gradient in gradients.items():
            assert relative_error(gradient, expected.gradients[name]) < 1e-5, name


def test_two_stages_of_two_ranks_train_on_lines_of_json_like_one_process_would(tmp_path: Path) -> None:
    # 24 held-out sequences: a batch of 6 for every evaluation, and one of 4.
    data: Sections = {
        "data": {"corpus": "lines", "pattern": "*.jsonl", "evaluation_corpus": "lines"},
        "evaluation": {"every_steps": 5, "sequences": 10},
    }
    config = write_run(tmp_path, changes={"job": {"steps": 8}, "planner": {"profile": "measure"}, **data})
    texts = [path.read_text() for path in sorted((tmp_path / "texts").iterdir())]
    write_jsonl(tmp_path / "lines" / "corpus.jsonl", [{"text": text} for text in texts])

    with planner_process() as address:
        ended = torchrun(config, address, ranks=4, module=("support_e2e.recording_worker", str(tmp_path)))
        assert ended.code == 0, ended.output
        with grpc.insecure_channel(address) as channel:
            stub = planner_service_pb2_grpc.PlannerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer = stub.GetPlan(pb.GetPlanRequest(job="tiny", generation=1, step=0), timeout=10)
            steps = stub.ListPlans(pb.ListPlansRequest(job="tiny"), timeout=10).plans

    # Every step printed its line once, and the loss falls.
    lines = STEP_LINE.findall(ended.output)
    assert [int(step) for step, _ in lines] == list(range(8)), ended.output
    losses = [float(loss) for _, loss in lines]
    assert losses[-1] < 0.7 * losses[0]
    evaluations = re.findall(r"^step +(\d+) of 8  evaluation loss (\d\.\d{4})", ended.output, re.MULTILINE)
    assert [int(step) for step, _ in evaluations] == [4, 7]
    assert float(evaluations[1][1]) < float(evaluations[0][1]) < losses[0]
    assert "24 documents, 0 skipped; 3 longer than 128 tokens, truncated" in ended.output
    assert "passes not seen by the fit are off by" in ended.output
    assert ended.output.count("attention: torch's flash kernel for the CPU") == 1, ended.output

    # All ranks reported what they measured, and the loss is that of one process that runs one sequence at a time.
    expected = reference_step(TINY, 3, reference_batch(config, 0))
    assert losses[0] == pytest.approx(expected.loss, abs=1e-4)
    assert sorted(report.rank for report in answer.reports) == [0, 1, 2, 3]
    for report in answer.reports:
        assert report.loss == pytest.approx(expected.loss, rel=1e-5)
        assert len(report.actions) == 2 * sum(len(pipeline.chunks) for pipeline in answer.plan.pipelines)
        assert 0 < report.busy_s <= report.step_s
    assert [summary.step for summary in steps] == list(range(8))
    assert all(summary.measured_s > 0 for summary in steps)

    # So are all gradients.
    seen: set[str] = set()
    for rank in range(4):
        for name, gradient in torch.load(tmp_path / f"gradients-{rank}.pt").items():
            seen.add(name)
            assert relative_error(gradient, expected.gradients[name]) < 1e-5, name
    assert seen == set(expected.gradients)
