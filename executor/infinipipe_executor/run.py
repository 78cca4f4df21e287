"""One rank of a run, from its configuration to its last step."""

import logging

import torch
import torch.distributed as dist

from infinipipe_contract.profile import Profile
from infinipipe_executor.config import RunConfig
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.mesh import Mesh, init_mesh, own_device
from infinipipe_executor.model.config import ModelConfig, check_layout
from infinipipe_executor.model.source import data_of_model, open_model
from infinipipe_executor.model.stage import Stage, build_stage, check_device
from infinipipe_executor.parallel.groups import open_group
from infinipipe_executor.parallel.warm_up import warm_up
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planning import open_planning
from infinipipe_executor.profile_file import read_profile
from infinipipe_executor.profiler import measure_profile
from infinipipe_executor.start import join_ranks
from infinipipe_executor.trainer import Trainer
from infinipipe_kernels.attention import choose_backend
from infinipipe_kernels.dispatch import describe_operators

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def run_training(config: RunConfig, planner_address: str) -> None:
    """Train from the first to the last step.

    Raises:
        ExecutorError: If anything that a user can put right is wrong.
    """
    torch.set_num_threads(1)  # ranks share the cores of their machine
    cluster, dtype = config.cluster, DTYPES[config.model.dtype]
    source = open_model(config)
    model = source.config
    check_layout(model, cluster.pp_size, cluster.sp_size)
    check_device(model, cluster.device, dtype)
    own_device(cluster.device)
    measures = config.planner.profile == "measure"
    given = None if measures else read_profile(config, model, dtype.itemsize)
    corpus = open_corpus(data_of_model(config), model.vocab)
    logger.info("%s", corpus.report)

    with PlanClient(planner_address, call_timeout_s=config.planner.connect_timeout_s) as client:
        join_ranks(cluster)
        mesh = init_mesh(
            cluster.pp_size, cluster.sp_size, cluster.device, cluster.collective_timeout_s, dp_size=cluster.dp_size
        )
        warm_up(mesh, cluster.collective_timeout_s)
        logger.info("attention: %s", choose_backend(mesh.device).description)
        logger.info("norms, activation and loss: %s", describe_operators(mesh.device))
        torch.manual_seed(config.job.seed * cluster.rank_count + mesh.rank)  # dropout: each rank its own
        stage = build_stage(model, mesh, dtype=dtype, seed=config.job.seed, weights=source.weights)
        profile = given or _measure(config, model, mesh, stage, dtype.itemsize)
        planning = open_planning(config, client, profile)
        Trainer(config, mesh, stage, corpus, planning, _open_host_group(config)).train()
        dist.destroy_process_group()


def _open_host_group(config: RunConfig) -> dist.ProcessGroup:
    """Open the group of all ranks that carries CPU tensors, for what is compared and gathered between steps.

    Before a step, rank 0 may have to look for a planner that is away, while the others have their plan already.
    """
    timeout_s = config.cluster.collective_timeout_s + config.planner.connect_timeout_s
    group = open_group(range(dist.get_world_size()), timeout_s, backend="gloo")
    assert group is not None, "every rank is a member"
    return group


def _measure(config: RunConfig, model: ModelConfig, mesh: Mesh, stage: Stage, dtype_bytes: int) -> Profile:
    runner = StepRunner(stage, mesh, shards_gradients=config.cluster.shards_gradients)
    measured = measure_profile(model, config.cluster, mesh, runner, config.data.context_tokens, dtype_bytes)
    stage.zero_grad()
    logger.info(
        "this machine: %s; passes not seen by the fit are off by %.0f %% forward, %.0f %% backward",
        measured.profile.comment,
        100 * measured.forward_error_ratio,
        100 * measured.backward_error_ratio,
    )
    return measured.profile
