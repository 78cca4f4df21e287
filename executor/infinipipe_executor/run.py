"""One rank of a run, from its configuration to its last step."""

import logging
import os
from pathlib import Path

import torch.distributed as dist

from infinipipe_contract.profile import Profile
from infinipipe_executor.checkpoint_files import RunFacts
from infinipipe_executor.checkpoint_io import Checkpoints
from infinipipe_executor.config import RunConfig
from infinipipe_executor.cpu_defaults import set_cpu_defaults
from infinipipe_executor.data.corpus import Corpus, open_corpus, open_evaluation_corpus
from infinipipe_executor.evaluation import Evaluation
from infinipipe_executor.measuring import measure_stage
from infinipipe_executor.metrics_sinks import Sinks, open_sinks
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.source import DTYPES, ModelSource, data_of_model, open_checked_model
from infinipipe_executor.model.stage import build_stage
from infinipipe_executor.parallel.groups import open_group
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planner_access import load_access
from infinipipe_executor.planning import Planning, open_planning
from infinipipe_executor.profile_file import read_profile
from infinipipe_executor.resume import companions, describe_run, find_start, saved_profile
from infinipipe_executor.stage_division import check_stage_layers, divide_stages, share_division
from infinipipe_executor.start import open_mesh
from infinipipe_executor.stop import StopSignal
from infinipipe_executor.trainer import Trainer
from infinipipe_kernels.attention import choose_backend
from infinipipe_kernels.dispatch import describe_operators

logger = logging.getLogger(__name__)


def run_training(config: RunConfig, planner_address: str, stop: StopSignal) -> bool:
    """Train from the first step, or from where a checkpoint stands, to the last one.

    Args:
        config: The run.
        planner_address: HOST:PORT of the planner.
        stop: How this rank is told to end.

    Returns:
        Whether all steps are done; False if the run was told to end.

    Raises:
        ExecutorError: If anything that a user can put right is wrong.
    """
    set_cpu_defaults()
    cluster, dtype = config.cluster, DTYPES[config.model.dtype]
    source = open_checked_model(config)
    model = source.config
    access = load_access(config.planner, planner_address, os.environ)
    given = None if config.planner.profile == "measure" else read_profile(config, model, dtype.itemsize)
    check_stage_layers(cluster, model, given)
    corpus, held_out = _open_corpora(config, model)
    division = divide_stages(cluster, model, given, corpus.mean_attended_tokens)
    logger.info("%s", division)

    with PlanClient(planner_address, call_timeout_s=config.planner.connect_timeout_s, access=access) as client:
        mesh, store = open_mesh(cluster)
        logger.info("attention: %s", choose_backend(mesh.device).description)
        logger.info("norms, activation and loss: %s", describe_operators(mesh.device))
        # Waits for the slowest disk, and is used by a thread of its own while training goes on.
        file_group = _open_cpu_group(cluster.start_timeout_s)
        facts = describe_run(config, model, corpus, mesh, file_group)
        found = find_start(config.checkpoint, facts, config.job.steps, file_group)
        first_step = 0 if found is None else found[1].step
        if first_step >= config.job.steps:
            dist.destroy_process_group()
            return True
        layers = share_division(division.stage_layers, mesh)
        weights = source.weights if found is None else None
        stage = build_stage(model, mesh, dtype=dtype, seed=config.job.seed, weights=weights, stage_layers=layers)
        profile = given or saved_profile(config, model, dtype.itemsize, layers, facts, found)
        profile = profile or measure_stage(config, mesh, stage, layers)
        planning = open_planning(config, client, profile, store, stop)
        # Before a step, a rank may have to look for a planner that is away, while the others have their plan already;
        # ``Planning.fetch`` gives up before they do.
        host_group = _open_cpu_group(cluster.collective_timeout_s + config.planner.connect_timeout_s)
        sinks = open_sinks(config.metrics, config.job.name, first_step) if mesh.rank == 0 else Sinks([])
        trainer = Trainer(
            config,
            mesh,
            stage,
            corpus,
            planning,
            host_group,
            checkpoints=_open_checkpoints(config, source, corpus, profile, facts, found, file_group),
            sinks=sinks,
            evaluation=_open_evaluation(config, held_out, planning, host_group),
        )
        if found is not None:
            trainer.resume(*found, file_group)
        stop.defer(store)
        is_done = trainer.train()
        sinks.close()
        dist.destroy_process_group()
        return is_done


def _open_corpora(config: RunConfig, model: ModelConfig) -> tuple[Corpus, Corpus | None]:
    """Open what is trained on and what is held out, and tell what became of either."""
    data = data_of_model(config)
    corpus = open_corpus(data, model.vocab)
    held_out = open_evaluation_corpus(data, model.vocab, corpus.tokenizer)
    for opened in filter(None, (corpus, held_out)):
        logger.info("%s", opened.report)
    return corpus, held_out


def _open_checkpoints(
    config: RunConfig,
    source: ModelSource,
    corpus: Corpus,
    profile: Profile,
    facts: RunFacts,
    found: tuple[Path, RunFacts] | None,
    group: dist.ProcessGroup,
) -> Checkpoints | None:
    if config.checkpoint is None:
        return None
    trained_tokenizer = corpus.tokenizer if source.description.tokenizer is None else None
    write_companions = companions(source.describe(trained_tokenizer), profile, trained_tokenizer)
    return Checkpoints(config.checkpoint, facts, group, write_companions, -1 if found is None else found[1].step)


def _open_evaluation(
    config: RunConfig, held_out: Corpus | None, planning: Planning, host_group: dist.ProcessGroup
) -> Evaluation | None:
    if config.evaluation is None or held_out is None:
        return None
    return Evaluation(config.evaluation, held_out, config.data.sequences_per_batch, planning, host_group)


def _open_cpu_group(timeout_s: float) -> dist.ProcessGroup:
    """Open a group of all ranks that carries CPU tensors, for what is compared and gathered beside the training."""
    with peers_watched(dist.get_rank(), "the start of the job"):
        group = open_group(range(dist.get_world_size()), timeout_s, backend="gloo")
    assert group is not None, "every rank is a member"
    return group
