"""RMSNorm against the plain reference."""

import pytest
import torch

from infinipipe_kernels.rms_norm import rms_norm
from infinipipe_kernels.rms_norm.reference import rms_norm_reference
from support_executor.closeness import TOLERANCES, relative_error


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (63, 111), (100, 64), (0, 8)])
def test_output_and_gradients_equal_the_reference(tokens: int, width: int, dtype: torch.dtype) -> None:
    x = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(width, dtype=dtype, requires_grad=True)
    gradient = torch.randn(tokens, width, dtype=dtype)

    output = rms_norm(x, weight, 1e-5)
    gradients = torch.autograd.grad(output, (x, weight), gradient)

    expected = rms_norm_reference(x, weight, 1e-5)
    expected_gradients = torch.autograd.grad(expected, (x, weight), gradient)
    for actual, wanted in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert actual.dtype == dtype
        assert relative_error(actual, wanted) <= TOLERANCES[dtype]


def test_a_row_of_zeros_stays_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(2, 8, requires_grad=True)

    output = rms_norm(x, torch.ones(8), 1e-5)
    torch.autograd.backward(output.sum())

    assert torch.equal(output, torch.zeros(2, 8))
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_runs_on_meta_tensors_for_their_shapes() -> None:
    x = torch.empty(5, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)

    torch.autograd.backward(rms_norm(x, torch.empty(8, device="meta", dtype=torch.bfloat16), 1e-5).sum())

    assert x.grad is not None
    assert x.grad.shape == (5, 8)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(4), r"weight has shape \[4\], it must be \[3\]"),
        (torch.zeros(2), torch.zeros(2), r"x has shape \[2\], it must be \[\*, \*\]"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.float64), "weight is torch.float64, it must be torch.float32"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3), "x is torch.int64, it must be floating point"),
    ],
)
def test_refuses_what_does_not_fit(x: torch.Tensor, weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, 1e-5)
