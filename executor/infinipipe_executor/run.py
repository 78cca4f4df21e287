"""One rank of a run, from its configuration to its last step."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from infinipipe_contract.codec import profile_from_json
from infinipipe_contract.errors import InvalidProfileError
from infinipipe_contract.profile import Profile
from infinipipe_executor.config import RunConfig
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.mesh import Mesh, init_mesh
from infinipipe_executor.model.config import ModelConfig, check_layout
from infinipipe_executor.model.stage import Stage, build_stage
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.plan_client import PlanClient
from infinipipe_executor.planning import open_planning
from infinipipe_executor.profiler import measure_profile
from infinipipe_executor.trainer import Trainer

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def run_training(config: RunConfig, planner_address: str) -> None:
    """Train from the first to the last step.

    Raises:
        ExecutorError: If anything that a user can put right is wrong.
    """
    torch.set_num_threads(1)  # ranks share the cores of their machine
    cluster, dtype = config.cluster, DTYPES[config.model.dtype]
    model = ModelConfig(**config.model.model_dump(exclude={"dtype"}))
    check_layout(model, cluster.pp_size, cluster.sp_size)
    given = None if config.planner.profile == "measure" else _read_profile(Path(config.planner.profile), config)
    corpus = open_corpus(config.data, model.vocab)
    logger.info("%s", corpus.report)

    with PlanClient(planner_address, call_timeout_s=config.planner.connect_timeout_s) as client:
        mesh = init_mesh(cluster.pp_size, cluster.sp_size, cluster.device, cluster.collective_timeout_s)
        torch.manual_seed(config.job.seed * cluster.pp_size * cluster.sp_size + mesh.rank)  # dropout: each rank its own
        stage = build_stage(model, mesh, dtype=dtype, seed=config.job.seed)
        profile = given or _measure(config, model, mesh, stage, dtype.itemsize)
        planning = open_planning(config, client, profile)
        host_group = dist.new_group(backend="gloo")
        assert isinstance(host_group, dist.ProcessGroup)
        Trainer(config, mesh, stage, corpus, planning, host_group).train()
        dist.destroy_process_group()


def _measure(config: RunConfig, model: ModelConfig, mesh: Mesh, stage: Stage, dtype_bytes: int) -> Profile:
    runner = StepRunner(stage, mesh)
    measured = measure_profile(model, config.cluster, mesh, runner, config.data.context_tokens, dtype_bytes)
    stage.zero_grad()
    logger.info(
        "this machine: %s; passes not seen by the fit are off by %.0f %% forward, %.0f %% backward",
        measured.profile.comment,
        100 * measured.forward_error_ratio,
        100 * measured.backward_error_ratio,
    )
    return measured.profile


def _read_profile(path: Path, config: RunConfig) -> Profile:
    """Read a profile file and make sure that it is of this model and layout; the memory is the configuration's."""
    try:
        profile = profile_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"profile {path} cannot be read: {error.strerror} ([planner] profile)") from error
    except InvalidProfileError as error:
        raise ConfigError(f"{path}: {error} ([planner] profile)") from error
    cluster, model = config.cluster, config.model
    for key, had, wanted in (
        ("cluster.pp_size", profile.cluster.pp_size, cluster.pp_size),
        ("cluster.sp_size", profile.cluster.sp_size, cluster.sp_size),
        ("model.layers", profile.model.layers, model.layers),
        ("model.hidden", profile.model.hidden, model.hidden),
        ("model.vocab", profile.model.vocab, model.vocab),
    ):
        if had != wanted:
            raise ConfigError(f"{path}: {key} is {had}, the configuration says {wanted} ([planner] profile)")
    return replace(
        profile,
        cluster=replace(
            profile.cluster,
            device_memory_bytes=cluster.device_memory_bytes,
            usable_memory_ratio=cluster.usable_memory_ratio,
        ),
    )
