"""Rotary positions as a ``config.json`` describes them, in either of its two ways.

Until transformers 4 the base is ``rope_theta`` and what stretches the angles is ``rope_scaling``; from transformers 5
on both lie in ``rope_parameters``. Entry point: ``read_rope``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_keys import read_count, read_number

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3 stretches its angles to contexts beyond those it was first trained on (``rope_type`` "llama3").

    Waves shorter than ``original_tokens / high_freq_factor`` stay, those longer than ``original_tokens /
    low_freq_factor`` become ``factor`` times as long, and those between go over smoothly.

    Attributes:
        factor: How much longer long waves become, at least 1.
        low_freq_factor: Waves that fit fewer times into the original context are long.
        high_freq_factor: Waves that fit more often are short; more than ``low_freq_factor``.
        original_tokens: Original context.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Base of the angles, and how they are stretched; None for not at all."""

    theta: float
    scaling: RopeScaling | None


def read_rope(config: Mapping[str, Any]) -> Rope:
    """Take the rotary positions out of a parsed configuration.

    Raises:
        ModelConfigError: If they are of a type that is not supported, or a value makes no sense.
    """
    given = {key: config[key] for key in ("rope_parameters", "rope_scaling") if config.get(key) is not None}
    if len(given) > 1 and given["rope_parameters"] != given["rope_scaling"]:
        raise ModelConfigError("rope_parameters and rope_scaling are both given and differ")
    key, parameters = next(iter(given.items()), ("rope_parameters", {}))
    if not isinstance(parameters, Mapping):
        raise ModelConfigError(f"{key} is {json.dumps(parameters)}, it must be an object")
    if read_number(parameters, "partial_rotary_factor", read_number(config, "partial_rotary_factor", 1.0)) != 1:
        raise ModelConfigError("partial_rotary_factor is not 1: heads that are turned in part are not supported")
    theta = read_number(config, "rope_theta", DEFAULT_THETA)
    if "rope_theta" in parameters:
        inner = read_number(parameters, "rope_theta", DEFAULT_THETA)
        if "rope_theta" in config and inner != theta:
            raise ModelConfigError(f"rope_theta is {theta:g}, but {inner:g} in {key}")
        theta = inner
    return Rope(theta, _read_scaling(parameters, key))


def _read_scaling(parameters: Mapping[str, Any], key: str) -> RopeScaling | None:
    # The older name of the key is "type".
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind is None and not parameters.keys() <= {"rope_theta", "partial_rotary_factor"}:
        raise ModelConfigError(f"{key} has no rope_type: {json.dumps(dict(parameters))}")
    if kind in (None, "default"):
        return None
    if kind != "llama3":
        raise ModelConfigError(f"rope_type is {json.dumps(kind)} in {key}, supported are default and llama3")
    scaling = RopeScaling(
        factor=read_number(parameters, "factor"),
        low_freq_factor=read_number(parameters, "low_freq_factor"),
        high_freq_factor=read_number(parameters, "high_freq_factor"),
        original_tokens=read_count(parameters, "original_max_position_embeddings"),
    )
    if scaling.factor < 1:
        raise ModelConfigError(f"factor is {scaling.factor:g} in {key}, it must be at least 1")
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ModelConfigError(
            f"high_freq_factor is {scaling.high_freq_factor:g} in {key}, it must be more than low_freq_factor, which "
            f"is {scaling.low_freq_factor:g}"
        )
    return scaling
