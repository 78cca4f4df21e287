"""The configuration file: one TOML file, checked strictly before anything starts.

A key that is not known is an error that names the nearest known one, or the section in which the key belongs; a value
of another type is refused, never converted. Paths are relative to the file. Entry point: ``load_config``.
"""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from infinipipe_contract.names import nearest
from infinipipe_executor.config.run_config import RunConfig
from infinipipe_executor.errors import ConfigError

# Longer values are cut where a message shows them.
SHOWN_CHARACTERS = 80


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


def _resolve_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Turn the texts that name files into paths below the folder of the configuration, and TOML's lists into tuples."""

    def resolve(section: str, key: str, value: object) -> object:
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, str) and _is_path(section, key):
            return folder / value
        if isinstance(value, str) and (section, key) == ("planner", "profile") and value != "measure":
            return str(folder / value)
        return value

    return {
        section: {key: resolve(section, key, value) for key, value in keys.items()} if isinstance(keys, dict) else keys
        for section, keys in raw.items()
    }


def _sections() -> dict[str, type[BaseModel]]:
    """Find the class of every section; that of an optional one stands beside None."""
    sections = {}
    for name, field in RunConfig.model_fields.items():
        (section,) = _types(field.annotation) - {type(None)}
        assert issubclass(section, BaseModel)
        sections[name] = section
    return sections


def _types(annotation: object) -> set[type]:
    return {kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)}


def _is_path(section: str, key: str) -> bool:
    fields = _sections()[section].model_fields if section in _sections() else {}
    return key in fields and Path in _types(fields[key].annotation)


def _keys_by_section() -> dict[str, set[str]]:
    return {name: set(section.model_fields) for name, section in _sections().items()}


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
