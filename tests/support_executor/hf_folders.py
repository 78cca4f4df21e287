"""Hugging Face folders written without transformers, with any fault that a test asks for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.export import llama_config
from infinipipe_executor.model.hf_names import to_hf
from infinipipe_executor.model.stage import parameter_shapes
from support_executor.reference import TINY


def tensors_of(config: ModelConfig = TINY) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {to_hf(name): torch.randn(shape, generator=generator) for name, shape in parameter_shapes(config).items()}


def write_folder(folder: Path, tensors: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """Write a folder with the tiny Llama: one file of tensors and a configuration with some keys changed."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors_of() if tensors is None else tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(llama_config(TINY, 64) | changes))
    return folder
