"""What lies beside a ``tokenizer.json``: the names of special tokens and the chat template.

Both are optional: ``tokenizer_config.json`` with ``eos_token`` and ``chat_template``, and ``chat_template.jinja``,
which goes first.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipipe_executor.data.chat_template import ChatTemplate
from infinipipe_executor.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
_TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What is known beside a tokenizer.

    Attributes:
        special_tokens: Texts of the special tokens that are named, such as ``eos_token``.
        template: The chat template, if there is one.
    """

    special_tokens: dict[str, str]
    template: ChatTemplate | None


def tokenizer_files(tokenizer: Path) -> list[Path]:
    """List the files that decide what becomes of a text."""
    return [tokenizer, *(path for path in _beside(tokenizer) if path.is_file())]


def read_tokenizer_files(tokenizer: Path) -> TokenizerFiles:
    """Read what lies beside a tokenizer.

    Raises:
        DataError: If a file is there and cannot be read.
    """
    config_path, template_path = _beside(tokenizer)
    config = _read_config(config_path) if config_path.is_file() else {}
    tokens = {key: token for key in _TOKEN_KEYS if (token := _token_text(config.get(key))) is not None}
    if template_path.is_file():
        return TokenizerFiles(tokens, ChatTemplate(_read_text(template_path), tokens, template_path))
    source = _template_text(config.get("chat_template"))
    return TokenizerFiles(tokens, None if source is None else ChatTemplate(source, tokens, config_path))


def _beside(tokenizer: Path) -> tuple[Path, Path]:
    return tokenizer.parent / CONFIG_FILE, tokenizer.parent / TEMPLATE_FILE


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror} ([data] tokenizer)") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read: {error} ([data] tokenizer)") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read_text(path))
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error} ([data] tokenizer)") from error
    return config if isinstance(config, dict) else {}


def _token_text(value: object) -> str | None:
    """Read a token, which is written as its text or as an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template_text(value: object) -> str | None:
    """Read a template, which is written as its text or as a list with names; the one of conversations is "default"."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
