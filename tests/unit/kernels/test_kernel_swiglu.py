"""SwiGLU against the plain reference."""

import pytest
import torch

from infinipipe_kernels.swiglu import swiglu
from infinipipe_kernels.swiglu.reference import swiglu_reference
from support_executor.closeness import TOLERANCES, relative_error


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (63, 111), (0, 8)])
def test_output_and_gradients_equal_the_reference(tokens: int, width: int, dtype: torch.dtype) -> None:
    gate = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    up = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    gradient = torch.randn(tokens, width, dtype=dtype)

    output = swiglu(gate, up)
    gradients = torch.autograd.grad(output, (gate, up), gradient)

    expected = swiglu_reference(gate, up)
    expected_gradients = torch.autograd.grad(expected, (gate, up), gradient)
    for actual, wanted in zip((output, *gradients), (expected, *expected_gradients), strict=True):
        assert actual.dtype == dtype
        assert relative_error(actual, wanted) <= TOLERANCES[dtype]


def test_large_gates_stay_finite() -> None:
    gate = torch.tensor([[-1e4, 1e4]], requires_grad=True)
    up = torch.ones(1, 2, requires_grad=True)

    output = swiglu(gate, up)
    torch.autograd.backward(output.sum())

    assert torch.equal(output, torch.tensor([[0.0, 1e4]]))
    assert gate.grad is not None
    assert torch.equal(gate.grad, torch.tensor([[0.0, 1.0]]))


def test_runs_on_meta_tensors_for_their_shapes() -> None:
    gate = torch.empty(5, 8, device="meta", requires_grad=True)

    torch.autograd.backward(swiglu(gate, torch.empty(5, 8, device="meta")).sum())

    assert gate.grad is not None
    assert gate.grad.shape == (5, 8)


def test_refuses_halves_of_different_width() -> None:
    with pytest.raises(ValueError, match=r"up has shape \[2, 4\], it must be \[2, 3\]"):
        swiglu(torch.zeros(2, 3), torch.zeros(2, 4))
