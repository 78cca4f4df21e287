"""Weights of a Hugging Face folder: safetensors, in one file or in several with an index.

Opening a folder reads the headers of its files and makes sure that they hold exactly the model; a rank then reads the
rows of its own shard and nothing else. Entry point: ``open_weights``.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import read_json_object
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.hf_names import HEAD, is_constant, shorten, to_hf

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class HfWeights:
    """The tensors of a folder, checked against a model.

    Attributes:
        files: File of every tensor, by the name that the checkpoint gives it.
        constants: Tensors that are left out: they follow from the configuration.
    """

    files: Mapping[str, Path]
    constants: tuple[str, ...]

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Read some rows of a parameter, and nothing else of its file.

        Args:
            name: Our name of the parameter.
            start: First row.
            stop: Row behind the last one.

        Returns:
            On the CPU, in the type of the file.

        Raises:
            ConfigError: If the file has changed or cannot be read any more.
        """
        hf_name = to_hf(name)
        with _opened(self.files[hf_name]) as file:
            rows: Tensor = file.get_slice(hf_name)[start:stop]
        return rows


def open_weights(folder: Path, shapes: Mapping[str, Sequence[int]], *, ties_embeddings: bool) -> HfWeights:
    """Look into the weights of a folder.

    Args:
        folder: A Hugging Face model.
        shapes: Our names of the model's parameters, with their shapes.
        ties_embeddings: Whether the head is the embedding. A checkpoint may hold it all the same, if it is equal.

    Raises:
        ConfigError: If the weights are missing or are not those of the model; names every tensor at fault.
    """
    headers, files = _read_headers(folder)
    wanted = {to_hf(name): tuple(shape) for name, shape in shapes.items()}
    constants = tuple(sorted(name for name in headers if is_constant(name)))
    superfluous = {name for name in headers if name not in wanted} - set(constants)
    if ties_embeddings and HEAD in superfluous:
        _check_equal_head(folder, files)
        superfluous.remove(HEAD)
    faults = [
        *_fault("missing", [name for name in wanted if name not in headers]),
        *_fault("not of this model", sorted(superfluous)),
        *_fault(
            "of another shape",
            [
                f"{name} {list(headers[name].shape)} instead of {list(shape)}"
                for name, shape in wanted.items()
                if name in headers and headers[name].shape != shape
            ],
        ),
        *_fault(
            f"of a type other than {', '.join(_DTYPES)}",
            [
                f"{name} ({headers[name].dtype})"
                for name in wanted
                if name in headers and headers[name].dtype not in _DTYPES
            ],
        ),
    ]
    if faults:
        hint = "; its config.json does not say tie_word_embeddings" if HEAD in wanted and HEAD not in headers else ""
        raise ConfigError(f"the weights in {folder} do not fit its config.json: {'; '.join(faults)}{hint}")
    return HfWeights({name: files[name] for name in wanted}, constants)


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    dtype: str


def _read_headers(folder: Path) -> tuple[dict[str, _Header], dict[str, Path]]:
    headers, files = {}, {}
    for path in _find_files(folder):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  # a file of safetensors, no dictionary
                part = file.get_slice(name)
                headers[name] = _Header(tuple(part.get_shape()), part.get_dtype())
                files[name] = path
    return headers, files


def _find_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        other = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt*"))
        hint = f" (it has {other[0]}: only safetensors are read)" if other else ""
        raise ConfigError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}{hint} ([model] path)")
    try:
        index = read_json_object(folder / INDEX_FILE).get("weight_map")
    except ModelConfigError as error:
        raise ConfigError(f"{error} ([model] path)") from None
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise ConfigError(f"{folder / INDEX_FILE}: weight_map must map names of tensors to names of files")
    paths = [folder / name for name in sorted(set(index.values()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}, which its {INDEX_FILE} names ([model] path)")
    return paths


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:  # the library has no types
    """Open a file of tensors, and say its name when it is broken."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error} ([model] path)") from error


def _check_equal_head(folder: Path, files: Mapping[str, Path]) -> None:
    """Refuse a checkpoint that holds a head of its own although its configuration says that it has none."""
    embedding = to_hf("embedding.weight")
    if embedding not in files:
        return
    with _opened(files[embedding]) as one, _opened(files[HEAD]) as other:
        if torch.equal(one.get_tensor(embedding), other.get_tensor(HEAD)):
            return
    raise ConfigError(
        f"{folder}: its config.json says tie_word_embeddings, but {HEAD} differs from {embedding} ([model] path)"
    )


def _fault(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [f"{shorten(names)} {'is' if len(names) == 1 else 'are'} {what}"]
