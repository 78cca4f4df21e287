"""Section ``[metrics]``: where the metrics of every step go besides the console."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from infinipipe_executor.config.section import Section


class MetricsConfig(Section):
    """Section ``[metrics]``; rank 0 writes all of them.

    Attributes:
        jsonl: File to which one JSON object a step is appended.
        tensorboard: Folder for the event files of TensorBoard.
        wandb_project: Project of Weights & Biases; needs the extra ``wandb``.
    """

    jsonl: Path | None = None
    tensorboard: Path | None = None
    wandb_project: Annotated[str, Field(min_length=1)] | None = None
