"""JSON text that people hand in: every fault is one sentence with its place, and none gets past."""

import json
from typing import Any

from infinipipe_contract.errors import ContractError


class JsonTextError(ContractError):
    """A text is not JSON, or holds what no reader here would take."""


def parse_json(text: str) -> Any:  # noqa: ANN401  # what JSON is
    """Read JSON text.

    Raises:
        JsonTextError: If it is not JSON, nests too deeply or holds a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"not JSON, line {error.lineno} column {error.colno}: {error.msg}") from None
    except ValueError:
        raise JsonTextError("a number has more digits than can be read") from None
    except RecursionError:
        raise JsonTextError("lists or objects are nested too deeply") from None
