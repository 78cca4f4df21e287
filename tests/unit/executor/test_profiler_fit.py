"""The cost model is fitted to measured passes: exact where they follow it, never negative, honest about its error."""

import itertools

import pytest

from infinipipe_contract.profile import ComputeCost
from infinipipe_executor.fit import LEFT_OUT_EVERY, PassSample, fit_compute_cost, mean_error_ratio
from infinipipe_executor.profiler import probe_chunks

DEVICES, STAGES = 4, 2


def passes(cost: ComputeCost) -> list[PassSample]:
    """Passes that take exactly what the cost model says."""
    return [
        PassSample(
            quadratic := (context + length) ** 2 - context**2,
            length,
            (cost.alpha1 * quadratic + cost.alpha2 * length) / DEVICES + cost.beta1 / STAGES,
        )
        for context, length in itertools.product((0, 500, 3000), (64, 700, 2000))
    ]


def test_passes_that_follow_the_model_give_its_coefficients_back() -> None:
    truth = ComputeCost(alpha1=3e-8, alpha2=5e-5, beta1=0.02)

    fitted, unseen_error_ratio = fit_compute_cost(passes(truth), DEVICES, STAGES)

    assert fitted.alpha1 == pytest.approx(truth.alpha1, rel=1e-6)
    assert fitted.alpha2 == pytest.approx(truth.alpha2, rel=1e-6)
    assert fitted.beta1 == pytest.approx(truth.beta1, rel=1e-6)
    assert unseen_error_ratio < 1e-6


def test_a_coefficient_that_would_be_negative_is_zero_and_the_others_are_fitted_without_it() -> None:
    # The fixed cost is negative in these passes: no such machine, but such measurements.
    samples = [
        sample._replace(compute_s=sample.tokens * 1e-4 / DEVICES - 1e-4) for sample in passes(ComputeCost(0, 1, 0))
    ]

    fitted, _ = fit_compute_cost(samples, DEVICES, STAGES)

    assert min(fitted.alpha1, fitted.alpha2, fitted.beta1) == 0.0
    assert fitted.beta1 == 0.0
    assert mean_error_ratio(fitted, samples, DEVICES, STAGES) < 0.05


def test_passes_that_take_the_same_time_whatever_they_hold_still_cost_something_by_the_token() -> None:
    fitted, _ = fit_compute_cost(
        [sample._replace(compute_s=0.01) for sample in passes(ComputeCost(1.0, 1.0, 0.0))], 4, 2
    )

    assert fitted.alpha1 + fitted.alpha2 > 0


def test_the_error_is_that_on_passes_which_the_fit_has_not_seen() -> None:
    truth = ComputeCost(alpha1=3e-8, alpha2=5e-5, beta1=0.02)
    samples = [
        sample._replace(compute_s=2 * sample.compute_s) if index % LEFT_OUT_EVERY == LEFT_OUT_EVERY - 1 else sample
        for index, sample in enumerate(passes(truth))
    ]

    assert fit_compute_cost(samples, DEVICES, STAGES).unseen_error_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("samples", [[], [PassSample(1.0, 1.0, 1.0)], [PassSample(1.0, 1.0, 0.0)] * 8])
def test_nothing_is_fitted_to_nothing(samples: list[PassSample]) -> None:
    with pytest.raises(ValueError, match="at least 4 passes, each of which took some time"):
        fit_compute_cost(samples, DEVICES, STAGES)


@pytest.mark.parametrize("tokens", [64, 100, 4096])
def test_probes_hold_every_token_of_their_sequences_once_and_stay_within_their_size(tokens: int) -> None:
    for probe in probe_chunks(tokens):
        ends: dict[int, int] = {}
        for chunk in probe:
            assert sum(piece.start_token > 0 for piece in chunk.slices) <= 1
            for piece in chunk.slices:
                assert piece.length_tokens >= 1
                assert piece.start_token == ends.get(piece.sequence_index, 0)
                ends[piece.sequence_index] = piece.end_token
        assert sorted(ends) == list(range(len(ends)))
        assert sum(ends.values()) <= 2 * tokens
