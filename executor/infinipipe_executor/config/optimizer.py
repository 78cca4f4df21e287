"""Section ``[optimizer]``: how parameters change."""

from typing import Annotated

from pydantic import Field

from infinipipe_executor.config.section import Ratio, Section


class OptimizerConfig(Section):
    """Section ``[optimizer]``: AdamW.

    Attributes:
        learning_rate: Step size.
        betas: Decay of the two moments.
        weight_decay: Decoupled decay of the weights.
        max_grad_norm: Global norm above which gradients are scaled down to it.
    """

    learning_rate: Annotated[float, Field(gt=0)]
    betas: tuple[Ratio, Ratio] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
