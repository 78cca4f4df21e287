"""What the ranks of a group run in tests of the trainer and the profiler."""

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from infinipipe_contract.plan import ActionKind, Chunk, ChunkId, ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_executor.agreement import check_agreement
from infinipipe_executor.config import ClusterConfig, load_config
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import ExecutorError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.parallel.groups import open_group
from infinipipe_executor.pipeline.runner import StepResult, StepRunner
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_executor.planning import Planning
from infinipipe_executor.profiler import measure_profile
from infinipipe_executor.trainer import Trainer
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_e2e.runs import TINY, Sections, tiny_profile, write_run
from support_executor.plans import make_batch, make_plan
from support_executor.ranks import mesh_of


class LocalPlanner(PlanClient):
    """A planner within the rank, which writes down what it is asked."""

    def __init__(self, profile: Profile) -> None:
        super().__init__("127.0.0.1:1")
        self.asked: list[tuple[str, int]] = []
        self.reports: list[RankReport] = []
        self.options = self.held_out_options = PlanOptions()
        self._profile = profile
        self._batches: dict[int, tuple[Sequence[int], int | None]] = {}

    def submit_batch(
        self, step: int, lengths_tokens: Sequence[int], target_token_count: int | None = None, **_: Any
    ) -> int:
        self.asked.append(("submit", step))
        self._batches[step] = (lengths_tokens, target_token_count)
        return 0

    def fetch_plan(self, step: int, **_: Any) -> ExecutionPlan:
        self.asked.append(("fetch", step))
        lengths, target_count = self._batches[step]
        return solve_plan(
            lengths,
            self._profile,
            self.options,
            job="tiny",
            generation=1,
            step=step,
            target_token_count=target_count,
        )

    def solve_plan(self, lengths_tokens: Sequence[int], profile: Profile, **_: Any) -> ExecutionPlan:
        self.asked.append(("solve", len(lengths_tokens)))
        return solve_plan(lengths_tokens, profile, self.held_out_options)

    def report_step(self, step: int, report: RankReport, **_: Any) -> None:
        self.asked.append(("report", step))
        self.reports.append(report)


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.levelname, record.getMessage()))


class TrainerRank:
    """A trainer of one rank, its planner and what it logged."""

    def __init__(self, folder: Path, changes: Sections | None = None) -> None:
        config = load_config(write_run(folder, pp_size=1, sp_size=1, changes=changes))
        self.mesh = mesh_of(1, 1)
        self.stage = build_stage(TINY, self.mesh, dtype=torch.float32, seed=3)
        profile = tiny_profile(1, 1, device_memory_bytes=4 * 2**20)
        self.planner = LocalPlanner(profile)
        corpus = open_corpus(config.data, TINY.vocab)
        planning = Planning(self.planner, 0, profile, wait_timeout_s=5.0)
        group = dist.group.WORLD
        assert group is not None
        self.trainer = Trainer(config, self.mesh, self.stage, corpus, planning, group)
        self.records = Records()
        logger = logging.getLogger("infinipipe_executor")
        logger.handlers = [self.records]
        logger.setLevel(logging.INFO)

    def parameters(self) -> torch.Tensor:
        """All parameters in one row."""
        return torch.cat([parameter.detach().to_local().flatten() for parameter in self.stage.parameters()]).clone()  # type: ignore[attr-defined]  # sharded


def train(
    folder: Path, changes: Sections | None = None, policy: str = "search"
) -> tuple[list[tuple[str, int]], list[RankReport], list[str]]:
    """Train all steps; return what the planner was asked, the reports and the lines of the steps.

    A step runs once the batch of the next one has arrived, or after a while, so that the order of both is that of cause
    and effect, not of chance.
    """
    rank = TrainerRank(folder, changes)
    rank.planner.options = PlanOptions(policy=policy)
    run = rank.trainer._runner.run

    def run_behind_next_batch(plan: ExecutionPlan, batch: Batch) -> StepResult:
        end_s = time.monotonic() + 5.0
        while plan.step < 3 and ("submit", plan.step + 1) not in rank.planner.asked and time.monotonic() < end_s:
            time.sleep(0.001)
        rank.planner.asked.append(("run", plan.step))
        return run(plan, batch)

    rank.trainer._runner.run = run_behind_next_batch  # type: ignore[method-assign]  # watched
    rank.trainer.train()
    lines = [message for _, message in rank.records.seen if message.startswith("step")]
    return rank.planner.asked, rank.planner.reports, lines


def train_at_planner(config_path: Path, address: str, collective_timeout_s: float) -> tuple[bool, list[float]]:
    """Train a run with a planner on a socket; return whether all steps were done, and the waits for their plans."""
    config = load_config(config_path)
    mesh = mesh_of(config.cluster.pp_size, config.cluster.sp_size)
    profile = tiny_profile(config.cluster.pp_size, config.cluster.sp_size)
    host_group = open_group(range(dist.get_world_size()), collective_timeout_s, backend="gloo")
    assert host_group is not None
    with PlanClient(address) as client:
        if mesh.rank == 0:
            client.create_job("tiny", profile, context_tokens=128)
        client.join_job("tiny", 1)
        planning = Planning(client, mesh.rank, profile, wait_timeout_s=30.0)
        fetch, waits_s = planning.fetch, []

        def fetch_and_note(step: int, batch: Batch) -> tuple[ExecutionPlan, float]:
            plan, wait_s = fetch(step, batch)
            waits_s.append(wait_s)
            return plan, wait_s

        planning.fetch = fetch_and_note  # type: ignore[method-assign]  # watched
        stage = build_stage(TINY, mesh, dtype=torch.float32, seed=3)
        trainer = Trainer(config, mesh, stage, open_corpus(config.data, TINY.vocab), planning, host_group)
        return trainer.train(), waits_s


def train_until_told_to_end(folder: Path) -> tuple[bool, list[tuple[str, int]], list[str]]:
    """Tell the rank to end behind its second step; return whether all steps were done, the requests and the log."""
    rank = TrainerRank(folder)
    train_step = rank.trainer.train_step

    def step_and_tell(step: int, batch: Batch) -> bool:
        was_trained = train_step(step, batch)
        rank.trainer._planning._stop._is_requested = step == 1
        return was_trained

    rank.trainer.train_step = step_and_tell  # type: ignore[method-assign]  # the signal of the test
    is_done = rank.trainer.train()
    return is_done, rank.planner.asked, [message for _, message in rank.records.seen]


def train_last_of_epoch(folder: Path, data: Mapping[str, object]) -> tuple[list[Batch], float | None]:
    """Hand in the two batches of an epoch and train the second one; return both, and the loss."""
    rank = TrainerRank(folder, {"data": data})
    batches = [rank.trainer._hand_in(step) for step in range(2)]
    rank.trainer.train_step(1, batches[1])
    return batches, rank.planner.reports[0].loss


def train_without_targets(folder: Path) -> tuple[bool, bool, list[tuple[str, str]], list[tuple[str, int]]]:
    """Train a batch without targets, then one with; return whether each left the model alone, the log, the requests."""
    rank = TrainerRank(folder)
    token_ids = torch.arange(40) % TINY.vocab
    masked = Batch((make_sequence(token_ids, torch.zeros(40, dtype=torch.bool)), make_sequence(token_ids[:1])))
    learnt = Batch((make_sequence(token_ids),))
    same = []
    for step, batch in enumerate((masked, learnt)):
        before = rank.parameters()
        rank.planner.submit_batch(step, batch.lengths_tokens, batch.target_token_count)
        rank.trainer.train_step(step, batch)
        same.append(torch.equal(before, rank.parameters()))
    return same[0], same[1], rank.records.seen, rank.planner.asked


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that lies here."""
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def train_until_it_diverges(folder: Path, where: str) -> tuple[str, bool, int]:
    """Train one step whose loss or gradients are not finite; return the error, and what was left of the update."""
    rank = TrainerRank(folder)
    if where == "loss":
        with torch.no_grad():
            local(next(rank.stage.parameters())).fill_(float("nan"))
    else:
        run = rank.trainer._runner.run

        def run_and_overflow(plan: ExecutionPlan, batch: Batch) -> StepResult:
            result = run(plan, batch)
            gradient = next(rank.stage.layers.parameters()).grad
            assert gradient is not None
            local(gradient)[0] = float("inf")
            return result

        rank.trainer._runner.run = run_and_overflow  # type: ignore[method-assign]  # a planted fault
    before, error = rank.parameters(), "no error"
    try:
        rank.trainer.train()
    except ExecutorError as caught:
        error = f"{type(caught).__name__}: {caught}"
    after = rank.parameters()
    return error, torch.equal(before.nan_to_num(), after.nan_to_num()), len(rank.trainer._optimizer.state)


def disagree(plans: Sequence[str], batches: Sequence[str], told_rank: int = -1) -> str:
    """Compare digests of one letter a rank, one of which may have been told to end; return what comes of it."""
    group = dist.group.WORLD
    assert group is not None
    rank = dist.get_rank()
    try:
        goes_on = check_agreement(7, None if rank == told_rank else plans[rank] * 64, batches[rank] * 64, group)
    except ExecutorError as error:
        return f"{type(error).__name__}: {error}"
    return "agreed" if goes_on else "told to end"


def measure(folder: Path, pp_size: int, sp_size: int, dp_size: int = 1) -> Profile:
    """Measure a profile."""
    config = load_config(write_run(folder / str(dist.get_rank()), dp_size=dp_size, pp_size=pp_size, sp_size=sp_size))
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(TINY, mesh, dtype=torch.float32, seed=3)
    return measure_profile(TINY, config.cluster, mesh, StepRunner(stage, mesh), 128, dtype_bytes=4)


def measure_and_time(
    model: ModelConfig, context_tokens: int, chunks: Sequence[Chunk], lengths_tokens: Sequence[int], run_count: int
) -> tuple[Profile, dict[ActionKind, list[float]]]:
    """Measure a profile on one rank, then run other chunks; return the median seconds of their passes.

    The runs are all over before the medians are taken, so a slow moment of the machine hits one run of every chunk.
    """
    mesh = mesh_of(1, 1)
    runner = StepRunner(build_stage(model, mesh, dtype=torch.float32, seed=3), mesh)
    cluster = ClusterConfig(pp_size=1, sp_size=1, device="cpu", device_memory_mib=4096.0)
    profile = measure_profile(model, cluster, mesh, runner, context_tokens, dtype_bytes=4)
    batch = make_batch(lengths_tokens, vocab=model.vocab)
    plan = make_plan([chunks], 1, batch)
    runs = []
    for _ in range(run_count + 1):  # the first one warms up
        spans = runner.run(plan, batch).spans
        runs.append({(span.kind, span.chunk_id): span.end_s - span.start_s for span in spans})
    medians = {
        kind: [statistics.median(run[kind, ChunkId(0, index)] for run in runs[1:]) for index in range(len(chunks))]
        for kind in ActionKind
    }
    return profile, medians
