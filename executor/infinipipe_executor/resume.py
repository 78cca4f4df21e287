"""Going on with a run: what a checkpoint says about its run, what lies beside the tensors, and what is taken over."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from infinipipe_contract.codec import profile_to_json
from infinipipe_contract.profile import Profile
from infinipipe_executor.checkpoint_files import PROFILE, RunFacts, write_synced
from infinipipe_executor.checkpoint_search import check_fixed, find_newest
from infinipipe_executor.config import CheckpointConfig, RunConfig
from infinipipe_executor.data.corpus import Corpus
from infinipipe_executor.data.tokenizer_files import TOKENIZER_FILE
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.model_file import ModelDescription, write_model_file
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.profile_file import read_profile

logger = logging.getLogger(__name__)

_CORPUS = "the fingerprint of the sequences ([data] corpus, tokenizer, context_tokens, beyond_context)"


def describe_run(
    config: RunConfig, model: ModelConfig, corpus: Corpus, mesh: Mesh, group: dist.ProcessGroup
) -> RunFacts:
    """Say what a checkpoint must know about its run; the same on every rank.

    Fixed is what decides which sequence is trained in which step, and the shapes of the model. Dropout, the optimizer
    and the number of steps may change.
    """
    shape = dataclasses.asdict(model)
    del shape["dropout"]
    fixed = {
        "[job] seed": config.job.seed,
        "[data] sequences_per_batch": config.data.sequences_per_batch,
        _CORPUS: corpus.fingerprint,
        **{f"[model] {key}": value for key, value in shape.items()},
    }
    cuda = mesh.device.type == "cuda"
    device = [torch.cuda.get_device_name(mesh.device) if cuda else f"{os.cpu_count()} CPU cores"]
    with peers_watched(mesh.rank, "the start of the job"):
        dist.broadcast_object_list(device, dist.get_global_rank(group, 0), group=group)
    layout = dict(zip(mesh.device_mesh.mesh_dim_names or (), mesh.device_mesh.shape, strict=True))
    return RunFacts(0, json.loads(json.dumps(fixed)), layout, device[0])


def find_start(
    config: CheckpointConfig | None, facts: RunFacts, steps: int, group: dist.ProcessGroup
) -> tuple[Path, RunFacts] | None:
    """Find the checkpoint that a run goes on from, and say where the run starts.

    Args:
        config: Section ``[checkpoint]``; None without one.
        facts: What this run says about itself.
        steps: Steps of the run.
        group: All ranks, over gloo.

    Returns:
        The checkpoint and what it says about the run that wrote it; None to train from the first step.

    Raises:
        CheckpointError: If the folder holds checkpoints and none of them is whole, or it cannot be used.
        ConfigError: If the newest whole one belongs to other data or another model.
        PeerLostError: If another rank is gone.
    """
    if config is None:
        logger.info("no checkpoints are saved: there is no section [checkpoint]")
        return None
    found = find_newest(config.folder, group)
    if found is None:
        logger.info("no checkpoint in %s yet: training starts from the first step", config.folder)
        return None
    path, written = found
    check_fixed(path, written, facts.fixed)
    if written.step >= steps:
        logger.info(
            "the run is finished: checkpoint %s holds %d steps, and [job] steps is %d; raise it to train on",
            path,
            written.step,
            steps,
        )
    else:
        layout = " x ".join(f"{axis} {size}" for axis, size in written.layout.items())
        logger.info(
            "training goes on from checkpoint %s: %d of %d steps are done (%s)", path, written.step, steps, layout
        )
    return found


def saved_profile(
    config: RunConfig,
    model: ModelConfig,
    dtype_bytes: int,
    stage_layers: Sequence[int],
    facts: RunFacts,
    found: tuple[Path, RunFacts] | None,
) -> Profile | None:
    """Take over the cost model of the run that wrote a checkpoint, so that the same batches get the same plans.

    Args:
        config: The run.
        model: Sizes of the model.
        dtype_bytes: Bytes of one activation element.
        stage_layers: Layers of every stage.
        facts: What this run says about itself.
        found: The checkpoint and what it says about its run; None without one.

    Returns:
        The cost model; None if there is none for this layout, division and these devices: then it is to be measured.
    """
    if found is None or (found[1].layout, found[1].device) != (facts.layout, facts.device):
        return None
    try:
        profile = read_profile(config, model, dtype_bytes, found[0] / PROFILE)
    except ConfigError as error:
        logger.info("the cost model of the checkpoint is not used, and is measured again: %s", error)
        return None
    if profile.stage_layers != tuple(stage_layers):
        return None
    logger.info("the cost model is that of the checkpoint, so that plans stay the same; it is not measured again")
    return profile


def companions(
    description: ModelDescription, profile: Profile, trained_tokenizer: Path | None
) -> Callable[[Path], None]:
    """Return what writes the files that lie beside the tensors of a checkpoint.

    Args:
        description: The model.
        profile: The cost model.
        trained_tokenizer: The one that the run trained, which would go with the token cache; None if it was given one.
    """
    tokenizer = None if trained_tokenizer is None else trained_tokenizer.read_text(encoding="utf-8")

    def write(folder: Path) -> None:
        write_model_file(folder, description)
        write_synced(folder / PROFILE, profile_to_json(profile))
        if tokenizer is not None:
            write_synced(folder / TOKENIZER_FILE, tokenizer)

    return write
