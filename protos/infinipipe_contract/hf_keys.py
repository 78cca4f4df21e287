"""Reads single keys of a ``config.json``; what is missing or senseless is named with its key and value."""

import json
import math
from collections.abc import Mapping
from typing import Any

from infinipipe_contract.errors import ModelConfigError


def read_count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Read a whole number of at least 1; an absent or null key has the default, if there is one.

    Raises:
        ModelConfigError: With the key and the value.
    """
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelConfigError(f"the key {key} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelConfigError(f"{key} is {json.dumps(value)}, it must be a whole number of at least 1")
    return value


def read_number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Read a finite number above 0; an absent or null key has the default, if there is one.

    Raises:
        ModelConfigError: With the key and the value.
    """
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelConfigError(f"the key {key} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelConfigError(f"{key} is {json.dumps(value)}, it must be a number above 0")
    return float(value)
