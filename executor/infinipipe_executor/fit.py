"""Fit: the coefficients of Eq. 1 from measured passes, never negative.

Relative errors are minimised, so a short chunk counts as much as a long one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from infinipipe_contract.profile import ComputeCost

LEFT_OUT_EVERY = 4


class PassSample(NamedTuple):
    """One measured pass: token pairs (paper: sum of (C+s)^2 - C^2), tokens, and seconds of computation."""

    quadratic: float
    tokens: float
    compute_s: float


class Fit(NamedTuple):
    """A fitted cost, and how far it is off on passes that a fit had not seen: mean relative error without a sign."""

    cost: ComputeCost
    unseen_error_ratio: float


def fit_compute_cost(samples: Sequence[PassSample], device_count: int, pp_size: int) -> Fit:
    """Fit alpha1, alpha2 and beta1 of Eq. 1 by non-negative least squares.

    Every ``LEFT_OUT_EVERY``-th pass is left out of a first fit, which tells how well the model predicts passes that it
    has not seen; the cost is then fitted to all.

    Args:
        samples: At least ``LEFT_OUT_EVERY`` passes; seconds above 0.
        device_count: Devices of the cluster (paper: N).
        pp_size: Stages (paper: d_p).

    Raises:
        ValueError: If there are too few samples or a time is not above 0.
    """
    if len(samples) < LEFT_OUT_EVERY or any(sample.compute_s <= 0 for sample in samples):
        raise ValueError(f"a fit needs at least {LEFT_OUT_EVERY} passes, each of which took some time")
    seen = [sample for index, sample in enumerate(samples) if (index + 1) % LEFT_OUT_EVERY]
    unseen = samples[LEFT_OUT_EVERY - 1 :: LEFT_OUT_EVERY]
    error_ratio = mean_error_ratio(_solve(seen, device_count, pp_size), unseen, device_count, pp_size)
    return Fit(_solve(samples, device_count, pp_size), error_ratio)


def _solve(samples: Sequence[PassSample], device_count: int, pp_size: int) -> ComputeCost:
    """Solve the least squares: with three coefficients every choice of which ones are zero can be tried.

    The best choice without a negative coefficient is the exact solution. Time that depends on no tokens at all is
    noise, not a machine: one of the alphas is always among the chosen.
    """
    seconds = np.array([sample.compute_s for sample in samples])
    columns = np.array(
        [[sample.quadratic / device_count, sample.tokens / device_count, 1 / pp_size] for sample in samples]
    )
    relative = columns / seconds[:, None]
    scale = np.abs(relative).max(axis=0)
    relative = relative / scale
    best_error, best = float("inf"), np.zeros(3)
    for chosen in ([0], [1], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        solution = np.linalg.lstsq(relative[:, chosen], np.ones(len(samples)), rcond=None)[0]
        error = float(np.square(relative[:, chosen] @ solution - 1).sum())
        if (solution >= 0).all() and solution[0] > 0 and error < best_error:
            best_error = error
            best = np.zeros(3)
            best[chosen] = solution
    alpha1, alpha2, beta1 = (float(value) for value in best / scale)
    return ComputeCost(alpha1, alpha2, beta1)


def mean_error_ratio(cost: ComputeCost, samples: Sequence[PassSample], device_count: int, pp_size: int) -> float:
    """Mean relative error of the predicted seconds, without a sign."""
    errors = [
        abs(
            ((cost.alpha1 * sample.quadratic + cost.alpha2 * sample.tokens) / device_count + cost.beta1 / pp_size)
            / sample.compute_s
            - 1
        )
        for sample in samples
    ]
    return sum(errors) / len(errors)
