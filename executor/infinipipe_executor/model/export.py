"""Export: a checkpoint of a run becomes a Hugging Face folder, in one process and without the run.

Memory holds one file of the result at a time, and the folder appears under its name when it is whole. Entry point:
``export_checkpoint``.
"""

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from infinipipe_contract.errors import first_line
from infinipipe_executor.checkpoint_state import KEY_PREFIX
from infinipipe_executor.data.tokenizer_files import TOKENIZER_FILE
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.hf_names import shorten, to_hf
from infinipipe_executor.model.hf_weights import INDEX_FILE, SINGLE_FILE
from infinipipe_executor.model.model_file import ModelDescription, read_model_file
from infinipipe_executor.model.source import CONFIG_FILE
from infinipipe_executor.model.stage import parameter_shapes

FILE_BYTES = 4 * 2**30
"""Most bytes of one file of the result, unless a single tensor is larger."""

# What may lie beside a tokenizer.json and belongs to it, or tells how the model is used.
_COMPANIONS = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        tensor_count: Tensors.
        file_count: Files that hold them.
        written_bytes: Bytes of all tensors.
        copied: Names of the tokenizer's files; none if there are none any more.
        tokenizer: The run's ``tokenizer.json``; None if it had none.
    """

    tensor_count: int
    file_count: int
    written_bytes: int
    copied: tuple[str, ...]
    tokenizer: Path | None


def export_checkpoint(
    checkpoint: Path, output: Path, *, tell: Callable[[str], None], file_bytes: int = FILE_BYTES
) -> ExportReport:
    """Write the model of a checkpoint as a Hugging Face folder.

    Args:
        checkpoint: Folder of one checkpoint.
        output: Folder to make; it must not exist, or be empty.
        tell: Takes one line for every file that is written.
        file_bytes: Most bytes of one file.

    Raises:
        ConfigError: If the checkpoint is none, is broken or does not hold the model, or the output is in the way.
        OSError: If the output cannot be written.
    """
    model = read_model_file(checkpoint)
    tensors = _stored_tensors(checkpoint)
    _check_complete(checkpoint, tensors, parameter_shapes(model.config))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists and is not an empty folder (--output)")
    trained = checkpoint / TOKENIZER_FILE
    tokenizer = trained if trained.is_file() else model.tokenizer
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        file_count = _write_tensors(checkpoint, partial, tensors, file_bytes, tell)
        dtypes = {str(stored.properties.dtype).removeprefix("torch.") for stored in tensors.values()}
        _write_json(partial / CONFIG_FILE, _config_content(model, dtypes.pop() if len(dtypes) == 1 else "float32"))
        copied = _copy_tokenizer(tokenizer, partial)
        partial.replace(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ExportReport(len(tensors), file_count, sum(map(_bytes_of, tensors.values())), copied, tokenizer)


def llama_config(config: ModelConfig, context_tokens: int) -> dict[str, Any]:
    """Describe a model that was given by its sizes, as a ``config.json`` does."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "max_position_embeddings": context_tokens,
        "mlp_bias": False,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.ties_embeddings,
        "vocab_size": config.vocab,
    }


def _config_content(model: ModelDescription, dtype: str) -> dict[str, Any]:
    """Take the configuration that the run started from, with the type that the tensors have now."""
    content = dict(model.hf_config or llama_config(model.config, model.context_tokens))
    # Transformers 5 writes the first name and reads both; version 4 knows the second only.
    content[("dtype" if "dtype" in content else "torch_dtype")] = dtype
    return content


def _stored_tensors(checkpoint: Path) -> dict[str, TensorStorageMetadata]:
    """Read what a checkpoint says that it holds of the model, by our names."""
    try:
        stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    except (OSError, CheckpointException, pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
        raise ConfigError(f"{checkpoint} is no checkpoint, or a broken one: {_reason(error)}") from error
    return {
        key.removeprefix(KEY_PREFIX): entry
        for key, entry in stored.items()
        if key.startswith(KEY_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }


def _check_complete(
    checkpoint: Path, tensors: Mapping[str, TensorStorageMetadata], shapes: Mapping[str, torch.Size]
) -> None:
    wrong = [
        f"{name} is missing" if name not in tensors else f"{name} has the shape {list(tensors[name].size)}"
        for name, shape in shapes.items()
        if name not in tensors or tensors[name].size != shape
    ]
    wrong += [f"{name} is not of this model" for name in tensors if name not in shapes]
    if wrong:
        raise ConfigError(f"{checkpoint} does not hold the model: {shorten(wrong)}")


def _write_tensors(
    checkpoint: Path,
    folder: Path,
    tensors: Mapping[str, TensorStorageMetadata],
    file_bytes: int,
    tell: Callable[[str], None],
) -> int:
    """Write all tensors, one file after the other; return the number of files."""
    parts = _divide(tensors, file_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, start=1):
        file_name = SINGLE_FILE if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        _write_file(checkpoint, folder / file_name, {name: tensors[name] for name in names})
        weight_map |= {to_hf(name): file_name for name in names}
        tell(f"file {number} of {len(parts)}: {file_name}, {len(names)} tensors")
    if len(parts) > 1:
        total = sum(map(_bytes_of, tensors.values()))
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return len(parts)


def _write_file(checkpoint: Path, path: Path, tensors: Mapping[str, TensorStorageMetadata]) -> None:
    """Write one file; its tensors are gone before those of the next one are read."""
    part = {
        KEY_PREFIX + name: torch.empty(stored.size, dtype=stored.properties.dtype) for name, stored in tensors.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
            load(part, storage_reader=FileSystemReader(checkpoint), no_dist=True)
    except (OSError, CheckpointException, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"{checkpoint} is broken: {_reason(error)}") from error
    try:
        save_file({to_hf(name): part[KEY_PREFIX + name] for name in tensors}, path, metadata={"format": "pt"})
    except SafetensorError as error:  # as which a full disk shows
        raise OSError(str(error)) from error


def _reason(error: BaseException) -> str:
    """Take the first sentence of the cause, out of what may be pages with the tracebacks of several ranks."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return first_line(error).partition(". ")[0]


def _divide(tensors: Mapping[str, TensorStorageMetadata], file_bytes: int) -> list[list[str]]:
    """Fill one file after the other."""
    parts: list[list[str]] = []
    free_bytes = 0
    for name, stored in tensors.items():
        needed_bytes = _bytes_of(stored)
        if not parts or needed_bytes > free_bytes:
            parts.append([])
            free_bytes = file_bytes
        parts[-1].append(name)
        free_bytes -= needed_bytes
    return parts


def _bytes_of(stored: TensorStorageMetadata) -> int:
    return stored.size.numel() * stored.properties.dtype.itemsize


def _copy_tokenizer(tokenizer: Path | None, folder: Path) -> tuple[str, ...]:
    if tokenizer is None or not tokenizer.is_file():
        return ()
    shutil.copyfile(tokenizer, folder / TOKENIZER_FILE)
    # A tokenizer with a name of its own may lie beside the files of another.
    companions: Sequence[str] = _COMPANIONS if tokenizer.name == TOKENIZER_FILE else ()
    found = [name for name in companions if (tokenizer.parent / name).is_file()]
    for name in found:
        shutil.copyfile(tokenizer.parent / name, folder / name)
    return (TOKENIZER_FILE, *found)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
