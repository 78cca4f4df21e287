"""Section ``[optimizer]``: how parameters change."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from infinipipe_executor.config.section import MAX_COUNT, Positive, Ratio, Section


class OptimizerConfig(Section):
    """Section ``[optimizer]``: AdamW, its schedule, and what is added to the loss.

    Attributes:
        learning_rate: Step size; behind the warm-up, where it begins to fall.
        schedule: How it falls; see ``schedule.learning_rate``.
        warmup_steps: First steps, over which it rises on a line.
        decay_steps: Step at which the minimum is reached, warm-up included; absent: ``[job] steps``.
        min_learning_rate: Where it stays from then on.
        betas: Decay of the two moments.
        weight_decay: Decoupled decay of the matrices; norms and biases have none.
        max_grad_norm: Global norm above which gradients are scaled down to it; ``inf`` scales nothing.
        z_loss: Weight of the squared log-sum-exp of the logits that is added to the loss.
    """

    learning_rate: Annotated[float, Field(gt=0)]
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    decay_steps: Positive | None = None
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[Ratio, Ratio] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    z_loss: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("decay_steps", "min_learning_rate")
    @classmethod
    def _check_falls(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Refuse what a constant rate has no use for."""
        if value is not None and info.data.get("schedule") == "constant":
            raise ValueError('[optimizer] schedule is "constant", leave this key out or take "linear" or "cosine"')
        return value

    @field_validator("decay_steps")
    @classmethod
    def _check_decay(cls, decay_steps: int | None, info: ValidationInfo) -> int | None:
        warmup_steps = info.data.get("warmup_steps", 0)
        if decay_steps is not None and decay_steps <= warmup_steps:
            raise ValueError(f"it must be more than [optimizer] warmup_steps, which is {warmup_steps}")
        return decay_steps

    @field_validator("min_learning_rate")
    @classmethod
    def _check_minimum(cls, minimum: float, info: ValidationInfo) -> float:
        rate = info.data.get("learning_rate", minimum)
        if minimum > rate:
            raise ValueError(f"it must be at most [optimizer] learning_rate, which is {rate:g}")
        return minimum
