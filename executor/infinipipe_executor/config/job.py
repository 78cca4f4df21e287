"""Section ``[job]``: what the run is."""

from typing import Annotated

from pydantic import Field

from infinipipe_executor.config.section import MAX_SEED, Positive, Section


class JobConfig(Section):
    """Section ``[job]``.

    Attributes:
        name: Name under which the planner knows the run: letters, digits, ".", "_" and "-".
        steps: Training steps of the run.
        seed: Seed of the initial weights, of the order of the data and of dropout; at most ``MAX_SEED``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
    steps: Positive
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
