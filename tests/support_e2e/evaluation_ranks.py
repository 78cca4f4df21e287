"""What the ranks of a group run in tests of evaluation."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.config import RunConfig, load_config
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import Corpus, open_corpus, open_evaluation_corpus
from infinipipe_executor.errors import ExecutorError
from infinipipe_executor.evaluation import Evaluation
from infinipipe_executor.metrics_sinks import open_sinks
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.planning import Planning
from infinipipe_executor.stop import StopSignal
from infinipipe_executor.trainer import Trainer
from infinipipe_planner.options import PlanOptions
from support_e2e.runs import MODEL_KEYS, TINY, tiny_profile
from support_e2e.trainer_ranks import LocalPlanner, Records, local
from support_executor.ranks import SEED, mesh_of, run_step


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation did on one rank.

    Attributes:
        loss_sum: What it returned.
        message_count: Messages that this rank sent and received.
        training_message_count: The same of a training step by the same plan.
        is_untouched: Whether parameters, generators and mode are as before, and there is no gradient.
        held_bytes: What autograd held at most.
    """

    loss_sum: float
    message_count: int
    training_message_count: int
    is_untouched: bool
    held_bytes: float


def evaluate_plan(
    config: ModelConfig,
    dp_size: int,
    pp_size: int,
    sp_size: int,
    plan: ExecutionPlan,
    batch: Batch,
    dtype: torch.dtype = torch.float64,
) -> Evaluated:
    """Evaluate a batch, and for comparison train it."""
    mesh = mesh_of(pp_size, sp_size, dp_size=dp_size)
    stage = build_stage(config, mesh, dtype=dtype, seed=SEED)
    runner = StepRunner(stage, mesh, z_loss=0.1)
    before = [local(parameter).clone() for parameter in stage.parameters()]
    generator, messages = torch.get_rng_state(), mesh.channels.message_count
    loss_sum = runner.evaluate(plan, batch)
    count = mesh.channels.message_count - messages
    is_untouched = (
        all(torch.equal(local(now), then) for now, then in zip(stage.parameters(), before, strict=True))
        and all(parameter.grad is None for parameter in stage.parameters())
        and torch.equal(generator, torch.get_rng_state())
        and all(module.training for module in stage.modules())
    )
    held_bytes = float(runner._memory.saved.peak_bytes)
    training = run_step(config, pp_size, sp_size, plan, batch, dtype, dp_size)
    return Evaluated(loss_sum, count, training.message_count, is_untouched, held_bytes)


@dataclass(frozen=True)
class Run:
    """What a run did on one rank.

    Attributes:
        losses: Loss of every step.
        is_done: Whether all steps were done.
        error: Why it ended; empty for a good end.
        asked: What the planner was asked.
        log: Messages.
        parameters: This rank's shards at the end.
    """

    losses: list[float | None] = field(default_factory=list)
    is_done: bool = False
    error: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    parameters: torch.Tensor | None = None


def train_run(config_path: Path, stop_rank: int = -1, odd_rank: int = -1) -> Run:
    """Train a run from its first step.

    Args:
        config_path: The run.
        stop_rank: Rank that is told to end within the first evaluation.
        odd_rank: Rank whose planner plans held-out batches by another policy.
    """
    config = load_config(config_path)
    cluster = config.cluster
    mesh = mesh_of(cluster.pp_size, cluster.sp_size, dp_size=cluster.dp_size)
    records, stop = Records(), StopSignal()
    logger = logging.getLogger("infinipipe_executor")
    logger.handlers, logger.propagate = [records], False
    logger.setLevel(logging.INFO)
    profile = tiny_profile(cluster.pp_size, cluster.sp_size, 4 * 2**20, dp_size=cluster.dp_size)
    planner = LocalPlanner(profile)
    if mesh.rank == odd_rank:
        planner.held_out_options = PlanOptions(policy="paper")
    planning = Planning(planner, 0, profile, 5.0, stop)  # as rank 0: every rank has a planner of its own
    group = dist.group.WORLD
    assert group is not None
    model = TINY if not config.model.dropout else _with_dropout(config)
    stage = build_stage(model, mesh, dtype=torch.float32, seed=config.job.seed)
    sinks = open_sinks(config.metrics, config.job.name, 0) if mesh.rank == 0 else None
    corpus = open_corpus(config.data, TINY.vocab)
    trainer = Trainer(
        config,
        mesh,
        stage,
        corpus,
        planning,
        group,
        sinks=sinks,
        evaluation=_evaluation(config, corpus, planning, group),
    )
    evaluate = trainer._runner.evaluate

    def evaluate_and_tell(plan: ExecutionPlan, batch: Batch) -> float:
        stop._is_requested = mesh.rank == stop_rank
        return evaluate(plan, batch)

    trainer._runner.evaluate = evaluate_and_tell  # type: ignore[method-assign]  # the signal of the test
    error, is_done = "", False
    try:
        is_done = trainer.train()
    except ExecutorError as caught:
        error = f"{type(caught).__name__}: {caught}"
    if sinks is not None:
        sinks.close()
    return Run(
        [report.loss for report in planner.reports],
        is_done,
        error,
        planner.asked,
        [message for _, message in records.seen],
        torch.cat([local(parameter).detach().flatten() for parameter in stage.parameters()]),
    )


def _with_dropout(config: RunConfig) -> ModelConfig:
    return ModelConfig(**{key: getattr(config.model, key) for key in (*MODEL_KEYS, "dropout")})


def _evaluation(config: RunConfig, corpus: Corpus, planning: Planning, group: dist.ProcessGroup) -> Evaluation | None:
    held_out = open_evaluation_corpus(config.data, TINY.vocab, corpus.tokenizer)
    if config.evaluation is None or held_out is None:
        return None
    return Evaluation(config.evaluation, held_out, config.data.sequences_per_batch, planning, group)


def hand_on_plan(batch: Batch, tag: str) -> tuple[str, list[tuple[str, int]]]:
    """Have a held-out batch planned on several ranks; return the digest of the plan and what this rank asked."""
    profile = tiny_profile(1, 1, 4 * 2**20)
    planner = LocalPlanner(profile)
    store = PrefixStore(tag, _get_default_store())
    plan = Planning(planner, dist.get_rank(), profile, 20.0, store=store).plan_held_out(3, batch)
    return plan.digest, planner.asked
