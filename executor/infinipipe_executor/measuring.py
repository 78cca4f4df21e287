"""Measures this machine for a run: at its start (``measure_stage``), or apart from any run (``measure_machine``)."""

import logging

import torch.distributed as dist

from infinipipe_contract.profile import Profile
from infinipipe_executor.config import RunConfig
from infinipipe_executor.cpu_defaults import set_cpu_defaults
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.source import DTYPES, data_of_model, open_checked_model
from infinipipe_executor.model.stage import Stage, build_stage
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.profiler import measure_profile
from infinipipe_executor.stage_division import check_stage_layers, divide_stages, share_division
from infinipipe_executor.start import open_mesh

logger = logging.getLogger(__name__)


def measure_machine(config: RunConfig) -> Profile:
    """Measure the profile of a run without running it; a collective of all its ranks, or of one process alone.

    Stages are divided as the run would divide them, so its corpus is read.

    Args:
        config: The run; as many ranks as it needs were started.

    Returns:
        The profile, the same on all ranks.

    Raises:
        ExecutorError: If anything that a user can put right is wrong.
    """
    set_cpu_defaults()
    cluster, model = config.cluster, open_checked_model(config).config
    check_stage_layers(cluster, model, None)
    corpus = open_corpus(data_of_model(config), model.vocab)
    division = divide_stages(cluster, model, None, corpus.mean_attended_tokens)
    logger.info("%s", division)
    try:
        mesh, _ = open_mesh(cluster)
        layers = share_division(division.stage_layers, mesh)
        stage = build_stage(model, mesh, dtype=DTYPES[config.model.dtype], seed=config.job.seed, stage_layers=layers)
        return measure_stage(config, mesh, stage, layers)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def measure_stage(config: RunConfig, mesh: Mesh, stage: Stage, stage_layers: tuple[int, ...]) -> Profile:
    """Measure the profile with the stage of this rank and say how good it is; a collective of all ranks.

    Args:
        config: The run.
        mesh: Where this rank stands.
        stage: This rank's stage; it has no gradients afterwards.
        stage_layers: Layers of every stage.

    Raises:
        PeerLostError: If another rank is gone.
    """
    runner = StepRunner(stage, mesh, shards_gradients=config.cluster.shards_gradients)
    profile = measure_profile(
        stage.config,
        config.cluster,
        mesh,
        runner,
        config.data.context_tokens,
        stage.dtype.itemsize,
        stage_layers=stage_layers,
    )
    stage.zero_grad()
    logger.info("this machine: %s", profile.comment)
    return profile
