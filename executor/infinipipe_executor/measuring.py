"""Measures this machine for a run: at its start (``measure_stage``), or apart from any run (``measure_machine``)."""

import logging

import torch
import torch.distributed as dist

from infinipipe_contract.profile import Profile
from infinipipe_executor.config import RunConfig
from infinipipe_executor.cpu_defaults import set_cpu_defaults
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.mesh import Mesh, init_mesh, own_device
from infinipipe_executor.model.config import ModelConfig, check_layout
from infinipipe_executor.model.source import data_of_model, open_model
from infinipipe_executor.model.stage import Stage, build_stage, check_device
from infinipipe_executor.parallel.warm_up import warm_up
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.profiler import measure_profile
from infinipipe_executor.stage_division import check_stage_layers, divide_stages, share_division
from infinipipe_executor.start import join_ranks

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    cluster, dtype = config.cluster, DTYPES[config.model.dtype]
    model = open_model(config).config
    check_layout(model, cluster.pp_size, cluster.sp_size)
    check_device(model, cluster.device, dtype)
    own_device(cluster.device)
    check_stage_layers(cluster, model, None)
    corpus = open_corpus(data_of_model(config), model.vocab)
    division = divide_stages(cluster, model, None, corpus.mean_attended_tokens)
    logger.info("%s", division)
    join_ranks(cluster)
    try:
        mesh = init_mesh(
            cluster.pp_size, cluster.sp_size, cluster.device, cluster.collective_timeout_s, dp_size=cluster.dp_size
        )
        warm_up(mesh, cluster.collective_timeout_s)
        layers = share_division(division.stage_layers, mesh)
        stage = build_stage(model, mesh, dtype=dtype, seed=config.job.seed, stage_layers=layers)
        return measure_stage(config, model, mesh, stage, layers, dtype.itemsize)
    finally:
        dist.destroy_process_group()


def measure_stage(
    config: RunConfig, model: ModelConfig, mesh: Mesh, stage: Stage, stage_layers: tuple[int, ...], dtype_bytes: int
) -> Profile:
    """Measure the profile with the stage of this rank and say how good it is; a collective of all ranks.

    Args:
        config: The run.
        model: Sizes of the model.
        mesh: Where this rank stands.
        stage: This rank's stage; it has no gradients afterwards.
        stage_layers: Layers of every stage.
        dtype_bytes: Bytes of one activation element.

    Raises:
        PeerLostError: If another rank is gone.
    """
    runner = StepRunner(stage, mesh, shards_gradients=config.cluster.shards_gradients)
    measured = measure_profile(
        model, config.cluster, mesh, runner, config.data.context_tokens, dtype_bytes, stage_layers=stage_layers
    )
    stage.zero_grad()
    logger.info("this machine: %s", measured.profile.comment)
    return measured.profile
