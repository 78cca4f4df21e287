"""The model file: what an export needs to know beside the parameters of a checkpoint."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipipe_executor.model.config import ModelConfig

MODEL_FILE = "model.json"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model, as a checkpoint remembers it.

    Attributes:
        config: Sizes.
        context_tokens: Longest sequence of the run.
        hf_config: The ``config.json`` that the run started from; None where the model was given by its sizes.
        tokenizer: The ``tokenizer.json`` of the run; None if there is none.
    """

    config: ModelConfig
    context_tokens: int
    hf_config: Mapping[str, Any] | None
    tokenizer: Path | None


def write_model_file(folder: Path, model: ModelDescription) -> None:
    """Write ``model.json`` into the folder of a checkpoint.

    Raises:
        OSError: If it cannot be written.
    """
    text = json.dumps(dataclasses.asdict(model), indent=1, default=str)
    (folder / MODEL_FILE).write_text(text + "\n", encoding="utf-8")
