"""Section ``[checkpoint]``: where and how often a run is saved; without the section it is not."""

from pathlib import Path

from infinipipe_executor.config.section import Positive, Section


class CheckpointConfig(Section):
    """Section ``[checkpoint]``.

    Attributes:
        folder: Where checkpoints lie, one folder each; all machines of the run must see it.
        every_steps: Steps from one checkpoint to the next; the last step and a stop save one, too.
        keep: Newest checkpoints that stay; older ones are deleted.
    """

    folder: Path
    every_steps: Positive
    keep: Positive = 2
