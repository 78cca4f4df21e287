"""Configuration of a training run: one TOML file, checked strictly before anything starts.

A key that is not known is an error that names the nearest known one, or the section in which the key belongs; a value
of another type is refused, never converted. Paths are relative to the file. Entry points: ``load_config``, and
``check_address`` for the address of the planner, which comes from the command line.
"""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from infinipipe_contract.names import nearest
from infinipipe_executor.errors import ConfigError

MIB_BYTES = 2**20

# Longer values are cut where a message shows them.
SHOWN_CHARACTERS = 80

# Beyond these, what counts in 32 bits or takes a time in milliseconds would overflow far from here.
MAX_COUNT = 2**31 - 1
MAX_SEED = 2**32 - 1
WEEK_S = 7 * 24 * 3600.0

Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=WEEK_S)]
Ratio = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class JobConfig(_Section):
    """Section ``[job]``.

    Attributes:
        name: Name under which the planner knows the run: letters, digits, ".", "_" and "-".
        steps: Training steps of the run.
        seed: Seed of the initial weights, of the order of the data and of dropout; at most ``MAX_SEED``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    steps: Positive
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0


class ModelSection(_Section):
    """Section ``[model]``: a Llama by its sizes.

    Attributes:
        layers: Transformer layers, at least ``cluster.pp_size``.
        hidden: Width of the residual stream.
        heads: Query heads; a multiple of ``cluster.sp_size``.
        kv_heads: Key and value heads; ``heads`` is a multiple of it.
        head_dim: Width of one head.
        ffn: Width of the feed-forward layer.
        vocab: Entries of the vocabulary; also the size of a tokenizer trained on the corpus.
        dropout: Share of zeroed elements on both residual branches.
        dtype: Type of the computation; parameters and their gradients are always float32.
    """

    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    ffn: Positive
    vocab: Positive
    dropout: Ratio = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"


class DataConfig(_Section):
    """Section ``[data]``.

    Attributes:
        corpus: A folder (one file one document) or a ``.jsonl`` file (one ``{"text": ...}`` a line).
        pattern: Which files of the folder, at any depth; relative to it.
        exclude: Names of folders whose files are left out.
        tokenizer: A ``tokenizer.json``; absent: a byte-level BPE of ``model.vocab`` entries is trained on the corpus.
        cache: Folder for the trained tokenizer and the tokens.
        context_tokens: Longest sequence that is trained; of a single token nothing could be learnt.
        beyond_context: What happens to a longer document.
        sequences_per_batch: Sequences of one training step.
    """

    corpus: Path
    pattern: str = "*.py"
    exclude: tuple[str, ...] = ()
    tokenizer: Path | None = None
    cache: Path
    context_tokens: Annotated[int, Field(ge=2, le=MAX_COUNT)]
    beyond_context: Literal["truncate", "split", "drop", "error"]
    sequences_per_batch: Positive

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        """Refuse what would leave the folder, or what pathlib does not take."""
        path = PurePath(pattern)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError('it must name files below the corpus, for example "*.py" or "src/*.txt"')
        try:
            next(Path(os.devnull).glob(pattern), None)
        except (ValueError, NotImplementedError, IndexError) as error:
            raise ValueError(f'it is no pattern of file names ({error}); take for example "*.py"') from error
        return pattern


class ClusterConfig(_Section):
    """Section ``[cluster]``.

    Attributes:
        pp_size: Pipeline stages.
        sp_size: Ranks of one stage, which share every chunk's tokens and the stage's parameters.
        device: Where tensors live; "cpu" talks over gloo, "cuda" over NCCL.
        device_memory_mib: Memory of one device that plans count on, in MiB.
        usable_memory_ratio: Share of it that a plan may fill.
        collective_timeout_s: Longest wait of a rank for its peers within a collective.
        start_timeout_s: Longest wait of a rank, before the first collective, for others that still prepare their data.
    """

    pp_size: Positive
    sp_size: Positive
    device: Literal["cpu", "cuda"] = "cpu"
    device_memory_mib: Annotated[float, Field(gt=0, le=MAX_COUNT)]
    usable_memory_ratio: Annotated[float, Field(gt=0, le=1)] = 0.9
    collective_timeout_s: Seconds = 60.0
    start_timeout_s: Seconds = 3600.0

    @property
    def device_memory_bytes(self) -> float:
        """Memory of one device in bytes."""
        return self.device_memory_mib * MIB_BYTES


class OptimizerConfig(_Section):
    """Section ``[optimizer]``: AdamW.

    Attributes:
        learning_rate: Step size.
        betas: Decay of the two moments.
        weight_decay: Decoupled decay of the weights.
        max_grad_norm: Global norm above which gradients are scaled down to it.
    """

    learning_rate: Annotated[float, Field(gt=0)]
    betas: tuple[Ratio, Ratio] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0


class PlannerConfig(_Section):
    """Section ``[planner]``.

    Attributes:
        policy: How plans are made; empty means the planner's default.
        max_slice_count: Largest slice number K that is tried; 0 means ``pp_size`` + 4.
        connect_timeout_s: Longest wait for a planner to answer at all.
        wait_timeout_s: Longest wait for one plan.
        profile: "measure" measures this machine at the start; otherwise a profile file.
    """

    policy: str = ""
    max_slice_count: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    connect_timeout_s: Seconds = 30.0
    wait_timeout_s: Seconds = 600.0
    profile: str = "measure"


class RunConfig(_Section):
    """A whole configuration file; one attribute a section."""

    job: JobConfig
    model: ModelSection
    data: DataConfig
    cluster: ClusterConfig
    optimizer: OptimizerConfig
    planner: PlannerConfig = PlannerConfig()


def load_config(path: Path) -> RunConfig:
    """Read and check a configuration file.

    Raises:
        ConfigError: With the file, the section, the key and what is wrong with it; every fault in one message.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOML syntax or not UTF-8
        raise ConfigError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: brackets are nested too deeply") from error
    try:
        return RunConfig.model_validate(_resolve_paths(raw, path.resolve().parent))
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors()]
        raise ConfigError(f"{path}: {'; '.join(faults)}") from error


def check_address(address: str) -> None:
    """Refuse what cannot be the address of a planner, before anybody waits for an answer from there.

    Args:
        address: HOST:PORT; an IPv6 host stands in brackets.

    Raises:
        ConfigError: If it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host.strip("[]") or any(map(str.isspace, host)) or (":" in host and not is_bracketed):
        raise ConfigError(f"planner address {address!r} is not HOST:PORT, for example 127.0.0.1:50051 (--planner)")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65_535):
        raise ConfigError(f"planner address {address!r}: the port must be a number from 1 to 65535 (--planner)")


def _resolve_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Turn the texts that name files into paths below the folder of the configuration, and TOML's lists into tuples."""

    def resolve(section: str, key: str, value: object) -> object:
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, str) and section == "data" and key in ("corpus", "tokenizer", "cache"):
            return folder / value
        if isinstance(value, str) and (section, key) == ("planner", "profile") and value != "measure":
            return str(folder / value)
        return value

    return {
        section: {key: resolve(section, key, value) for key, value in keys.items()} if isinstance(keys, dict) else keys
        for section, keys in raw.items()
    }


def _keys_by_section() -> dict[str, set[str]]:
    sections: dict[str, set[str]] = {}
    for name, section in RunConfig.model_fields.items():
        assert isinstance(section.annotation, type) and issubclass(section.annotation, BaseModel)
        sections[name] = set(section.annotation.model_fields)
    return sections


def _describe(fault: ErrorDetails) -> str:
    """Say what is wrong with one key, in one sentence."""
    section, *keys = (str(part) for part in fault["loc"])
    where = f"[{section}]" if not keys else f"[{section}] {keys[0]}"
    if fault["type"] == "missing":
        return f"{where} is missing" if len(keys) < 2 else f"{where} has too few values"
    if fault["type"] == "extra_forbidden":
        return _describe_unknown(section, keys[0] if keys else None)
    known = _WORDS.get(fault["type"])
    reason = known(fault) if known else f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
    return f"{where} is {_short(fault['input'])}: {reason}"


# What pydantic says in words of Python, in words of TOML.
_WORDS: dict[str, Callable[[ErrorDetails], str]] = {
    "tuple_type": lambda fault: f"it must be a list, for example [{json.dumps(fault['input'])}]",
    "too_long": lambda fault: f"it must have {fault.get('ctx', {}).get('max_length')} values",
    "model_type": lambda _: "it must be a section with keys of its own",
    "is_instance_of": lambda _: "it must be a text that names a file or a folder",
    "value_error": lambda fault: str(fault.get("ctx", {}).get("error")),
}


def _short(value: object) -> str:
    """Show a value, but not pages of it."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _describe_unknown(section: str, key: str | None) -> str:
    known = _keys_by_section()
    if key is None:
        homes = [name for name, keys in known.items() if section in keys]
        if homes:
            return f"{section!r} stands outside of any section, it belongs in [{homes[0]}]"
        return f"unknown section [{section}]{_hint(section, known, '[{}]')}"
    homes = [name for name, keys in known.items() if key in keys]
    if homes:
        return f"[{section}] has no key {key!r}, it belongs in [{homes[0]}]"
    return f"[{section}] has no key {key!r}{_hint(key, known[section], '{!r}')}"


def _hint(word: str, known: dict[str, set[str]] | set[str], form: str) -> str:
    guess = nearest(word, sorted(known))
    return f"; did you mean {form.format(guess)}?" if guess else f"; known: {', '.join(sorted(known))}"
