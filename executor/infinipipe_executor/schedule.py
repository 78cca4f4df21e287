"""The learning rate of a step: a pure function of the step, so that a run that goes on needs no state for it."""

import math

from infinipipe_executor.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Give the learning rate of a step.

    With w warm-up steps and the minimum reached at step d:

        s < w         rate * (s + 1) / w, so that no step is trained with a rate of 0
        w <= s < d    from the rate at s = w towards the minimum at s = d: on a line, or on half a cosine
        d <= s        the minimum

    A constant schedule stays at the rate behind its warm-up. A step that is skipped counts like any other.

    Args:
        config: Section ``[optimizer]``.
        step: Training step, from 0.
        steps: Steps of the whole run: where the minimum is reached unless ``decay_steps`` says so.
    """
    rate, warmup_steps = config.learning_rate, config.warmup_steps
    if step < warmup_steps:
        return rate * (step + 1) / warmup_steps
    if config.schedule == "constant":
        return rate
    decay_steps = config.decay_steps or steps
    if step >= decay_steps:
        return config.min_learning_rate
    done = (step - warmup_steps) / (decay_steps - warmup_steps)
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.min_learning_rate + left * (rate - config.min_learning_rate)
