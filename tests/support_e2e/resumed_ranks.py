"""Parts of a run that is ended and goes on, on the ranks of a group: trainer, checkpoints, a planner in the rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist

from infinipipe_executor.checkpoint_io import Checkpoints
from infinipipe_executor.checkpoint_state import load_state
from infinipipe_executor.config import load_config
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import ExecutorError
from infinipipe_executor.metrics_sinks import open_sinks
from infinipipe_executor.model.model_file import ModelDescription
from infinipipe_executor.model.source import open_model
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.optimizer import build_optimizer
from infinipipe_executor.parallel.groups import open_group
from infinipipe_executor.planning import Planning
from infinipipe_executor.resume import companions, describe_run, find_start
from infinipipe_executor.stop import StopSignal
from infinipipe_executor.trainer import Trainer
from support_e2e.runs import tiny_profile
from support_e2e.trainer_ranks import LocalPlanner, Records
from support_executor.groups import GROUP_TIMEOUT_S
from support_executor.ranks import mesh_of


@dataclass(frozen=True)
class Part:
    """What one start of a run did on this rank.

    Attributes:
        losses: Loss of every step that was trained.
        batches: Digest of every batch that was trained.
        steps: Their steps.
        is_done: Whether all steps were done.
        error: Why it ended; empty for a good end.
        log: What was logged, with its level.
        parameters: This rank's shards.
    """

    losses: list[float] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    is_done: bool = False
    error: str = ""
    log: list[tuple[str, str]] = field(default_factory=list)
    parameters: torch.Tensor | None = None


def carry_checkpoint(config_path: Path, target: Path) -> None:
    """Read the newest checkpoint of a run into the layout of this configuration, and write it to another folder."""
    config, group = load_config(config_path), file_group()
    assert config.checkpoint is not None
    cluster = config.cluster
    mesh = mesh_of(cluster.pp_size, cluster.sp_size, dp_size=cluster.dp_size)
    model = open_model(config).config
    facts = describe_run(config, model, open_corpus(config.data, model.vocab), mesh, group)
    found = find_start(config.checkpoint, facts, config.job.steps, group)
    assert found is not None
    # Other values than those that are read.
    stage = build_stage(model, mesh, dtype=torch.float32, seed=config.job.seed + 1)
    optimizer = build_optimizer(stage, config.optimizer)
    load_state(found[0], stage, optimizer, group)
    profile = tiny_profile(cluster.pp_size, cluster.sp_size, 4 * 2**20, dp_size=cluster.dp_size)
    describe = companions(ModelDescription(model, 128, None, None), profile, None)
    checkpoints = Checkpoints(config.checkpoint.model_copy(update={"folder": target}), facts, group, describe)
    checkpoints.save(found[1].step, stage, optimizer)
    saved = checkpoints.finish()
    assert saved is not None
    assert saved.path == target / found[0].name, saved.problem


_groups: list[dist.ProcessGroup] = []


def file_group() -> dist.ProcessGroup:
    """The group of all ranks over which checkpoints are written; made once."""
    if not _groups:
        group = open_group(range(dist.get_world_size()), GROUP_TIMEOUT_S, "gloo")
        assert group is not None
        _groups.append(group)
    return _groups[0]


def train_part(
    config_path: Path,
    stop_rank: int = -1,
    stop_behind: int = -1,
    each_step: Callable[[int, Checkpoints], None] | None = None,
    ties_embeddings: bool = False,
) -> Part:
    """Start the run, from its newest checkpoint if there is one, and train to its end or until a rank is told to end.

    Args:
        config_path: The run; has a section ``[checkpoint]``.
        stop_rank: Rank that is told to end.
        stop_behind: Step behind which it is.
        each_step: Called behind every step.
        ties_embeddings: Whether the head is the embedding, of which two stages then hold a copy each.
    """
    config = load_config(config_path)
    assert config.checkpoint is not None
    records = Records()
    logger = logging.getLogger("infinipipe_executor")
    logger.handlers, logger.propagate = [records], False
    logger.setLevel(logging.INFO)
    cluster = config.cluster
    mesh = mesh_of(cluster.pp_size, cluster.sp_size, dp_size=cluster.dp_size)
    group = file_group()
    model = replace(open_model(config).config, ties_embeddings=ties_embeddings)
    corpus = open_corpus(config.data, model.vocab)
    host_group = dist.group.WORLD
    assert host_group is not None
    part, stop = Part(log=records.seen), StopSignal()
    try:
        facts = describe_run(config, model, corpus, mesh, group)
        found = find_start(config.checkpoint, facts, config.job.steps, group)
        if found is not None and found[1].step >= config.job.steps:
            return Part(is_done=True, log=records.seen)
        stage = build_stage(model, mesh, dtype=torch.float32, seed=config.job.seed)
        profile = tiny_profile(cluster.pp_size, cluster.sp_size, 4 * 2**20, dp_size=cluster.dp_size)
        planner = LocalPlanner(profile)
        planning = Planning(planner, 0, profile, 5.0, stop)  # as rank 0: every rank has a planner of its own
        checkpoints = Checkpoints(
            config.checkpoint,
            facts,
            group,
            companions(ModelDescription(model, 128, None, None), profile, None),
            found[1].step if found else -1,
        )
        trainer = Trainer(
            config,
            mesh,
            stage,
            corpus,
            planning,
            host_group,
            checkpoints=checkpoints,
            sinks=open_sinks(config.metrics, config.job.name, found[1].step if found else 0)
            if mesh.rank == 0
            else None,
        )
        if found is not None:
            trainer.resume(*found, group)
        train_step = trainer.train_step

        def watched_step(step: int, batch: Batch) -> bool:
            was_trained = train_step(step, batch)
            if was_trained:
                part.steps.append(step)
                part.batches.append(batch.digest())
                part.losses.append(planner.reports[-1].loss or 0.0)
                stop._is_requested = mesh.rank == stop_rank and step == stop_behind
                if each_step is not None:
                    each_step(step, checkpoints)
            return was_trained

        trainer.train_step = watched_step  # type: ignore[method-assign]  # watched
        is_done = trainer.train()
        trainer._sinks.close()
    except ExecutorError as error:
        return Part(error=f"{type(error).__name__}: {error}", log=records.seen)
    shards = [parameter.detach().to_local().flatten() for parameter in stage.parameters()]  # type: ignore[attr-defined]  # sharded
    return Part(part.losses, part.batches, part.steps, is_done, "", records.seen, torch.cat(shards))
