"""Where the model of a run comes from: sizes in the configuration, or a Hugging Face folder with weights.

Everything that can be wrong with a folder is found here, before ranks wait for each other. Entry points:
``open_model``, and ``open_checked_model`` on a rank of a run.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import HfConfig, read_hf_config, read_json_object
from infinipipe_executor.config import DataConfig, RunConfig
from infinipipe_executor.data.tokenizer_files import TOKENIZER_FILE
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.mesh import own_device
from infinipipe_executor.model.config import ModelConfig, check_layout
from infinipipe_executor.model.hf_weights import HfWeights, open_weights
from infinipipe_executor.model.model_file import ModelDescription
from infinipipe_executor.model.stage import check_device, parameter_shapes

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types of the computation, by ``[model] dtype``."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The model of a run.

    Attributes:
        description: What it is.
        weights: Its first parameters; None where they are drawn.
    """

    description: ModelDescription
    weights: HfWeights | None

    @property
    def config(self) -> ModelConfig:
        """Sizes of the model."""
        return self.description.config

    def describe(self, trained_tokenizer: Path | None) -> ModelDescription:
        """Say what a checkpoint remembers: a run that was given no tokenizer has the one that it trained, if any."""
        return replace(self.description, tokenizer=self.description.tokenizer or trained_tokenizer)


def open_model(run: RunConfig) -> ModelSource:
    """Find out what the model of a run is, and make sure that its weights are there and fit.

    Raises:
        ConfigError: If the model makes no sense, is not supported, or its weights do not fit; one sentence says why.
    """
    section, context_tokens = run.model, run.data.context_tokens
    if section.path is None:
        config = ModelConfig(**section.model_dump(exclude={"path", "dtype"}))
        return ModelSource(ModelDescription(config, context_tokens, None, run.data.tokenizer), None)
    folder = section.path
    try:
        hf = read_hf_config(folder / CONFIG_FILE, context_tokens)
        content = read_json_object(folder / CONFIG_FILE)
    except ModelConfigError as error:
        raise ConfigError(f"{error} ([model] path; [data] context_tokens is {context_tokens})") from None
    if hf.is_part:
        raise ConfigError(
            f"{folder / CONFIG_FILE}: the model has several parts (text_config), only a decoder by itself can be "
            "trained ([model] path)"
        )
    config = _model_config(hf, section.dropout)
    weights = open_weights(folder, parameter_shapes(config), ties_embeddings=config.ties_embeddings)
    logger.info("%s", _describe(folder, hf, weights, context_tokens))
    tokenizer = run.data.tokenizer or folder / TOKENIZER_FILE
    return ModelSource(ModelDescription(config, context_tokens, content, tokenizer), weights)


def open_checked_model(run: RunConfig) -> ModelSource:
    """Open the model of a run on one of its ranks, and make sure that layout and device do for it.

    The rank's device is the current one from then on.

    Raises:
        ConfigError: As ``open_model``, or if the device does not take the model.
        LayoutError: If the model cannot be divided among the ranks, or the device is not there.
    """
    source, cluster = open_model(run), run.cluster
    check_layout(source.config, cluster.pp_size, cluster.sp_size)
    check_device(source.config, cluster.device, DTYPES[run.model.dtype])
    own_device(cluster.device)
    return source


def data_of_model(run: RunConfig) -> DataConfig:
    """Complete section ``[data]``: a model with weights brings its tokenizer, no other would mean anything to it.

    Raises:
        ConfigError: If the model has weights and no tokenizer is there.
    """
    if run.model.path is None or run.data.tokenizer is not None:
        return run.data
    tokenizer = run.model.path / TOKENIZER_FILE
    if not tokenizer.is_file():
        raise ConfigError(f"{run.model.path} has no {TOKENIZER_FILE}, and none is given ([data] tokenizer)")
    return run.data.model_copy(update={"tokenizer": tokenizer})


def _model_config(hf: HfConfig, dropout: float) -> ModelConfig:
    shape = hf.shape
    return ModelConfig(
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ffn=shape.ffn,
        vocab=shape.vocab,
        ties_embeddings=shape.ties_embeddings,
        has_qkv_bias=shape.has_qkv_bias,
        has_qk_norm=shape.has_qk_norm,
        rope_theta=hf.rope.theta,
        rope_scaling=hf.rope.scaling,
        norm_eps=hf.norm_eps,
        dropout=dropout,
    )


def _describe(folder: Path, hf: HfConfig, weights: HfWeights, context_tokens: int) -> str:
    left_out = f", {len(weights.constants)} constants left out" if weights.constants else ""
    count = len(set(weights.files.values()))
    files = "one file" if count == 1 else f"{count} files"
    sentence = f"model: {folder} ({hf.family}), {len(weights.files)} tensors in {files}{left_out}"
    if hf.trained_tokens is not None and context_tokens > hf.trained_tokens:
        sentence += (
            f"; made for sequences of up to {hf.trained_tokens} tokens (max_position_embeddings), "
            f"[data] context_tokens is {context_tokens}"
        )
    return sentence
