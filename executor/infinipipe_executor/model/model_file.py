"""The model file: what ``infinipipe export`` needs to know beside the parameters of a checkpoint.

It lies in every checkpoint as ``model.json``, so that a checkpoint can be exported long after the run, on another
machine and without its configuration. ``write_model_file`` and ``read_model_file`` are its two ends.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from infinipipe_contract.errors import ModelConfigError
from infinipipe_contract.hf_config import read_json_object
from infinipipe_executor.checkpoint_files import write_synced
from infinipipe_executor.errors import ConfigError
from infinipipe_executor.model.config import ModelConfig

MODEL_FILE = "model.json"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model, as a checkpoint remembers it.

    Attributes:
        config: Sizes.
        context_tokens: Longest sequence of the run.
        hf_config: The ``config.json`` that the run started from; None where the model was given by its sizes.
        tokenizer: The ``tokenizer.json`` of the run, in whose folder its other files lie; None if there is none. One
            that the run trained lies in the checkpoint as well.
    """

    config: ModelConfig
    context_tokens: int
    hf_config: Mapping[str, Any] | None
    tokenizer: Path | None


_SCHEMA = TypeAdapter(ModelDescription)


def write_model_file(folder: Path, model: ModelDescription) -> None:
    """Write ``model.json`` into the folder of a checkpoint.

    Raises:
        OSError: If it cannot be written.
    """
    text = json.dumps(dataclasses.asdict(model), indent=1, default=str)
    write_synced(folder / MODEL_FILE, text + "\n")


def read_model_file(folder: Path) -> ModelDescription:
    """Read ``model.json`` from the folder of a checkpoint.

    Raises:
        ConfigError: If it is missing or does not describe a model.
    """
    path = folder / MODEL_FILE
    try:
        return _SCHEMA.validate_python(read_json_object(path))
    except ModelConfigError as error:
        raise ConfigError(f"{folder} is no checkpoint of a model: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
