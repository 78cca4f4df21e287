"""In-place cross-entropy against the plain reference."""

import math

import pytest
import torch
from torch import Tensor

from infinipipe_kernels.cross_entropy import cross_entropy_, function
from infinipipe_kernels.cross_entropy.reference import cross_entropy_reference
from support_executor.closeness import TOLERANCES, relative_error

IGNORE = -100


def targets_of(tokens: int, vocab: int) -> Tensor:
    """Every third row has no target."""
    targets = torch.randint(0, vocab, (tokens,))
    targets[::3] = IGNORE
    return targets


def run(hidden: Tensor, head: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Behind a projection, as in the model: the loss overwrites the projection's output."""
    loss = cross_entropy_(hidden @ head.T, targets, scale, IGNORE)
    (gradient,) = torch.autograd.grad(loss, hidden)
    return loss, gradient


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("tokens", "vocab"), [(1, 7), (63, 97), (100, 1111), (0, 5)])
def test_loss_and_gradient_equal_the_reference(tokens: int, vocab: int, dtype: torch.dtype) -> None:
    hidden = torch.randn(tokens, 16, dtype=dtype, requires_grad=True)
    head = torch.randn(vocab, 16, dtype=dtype)
    targets = targets_of(tokens, vocab)

    loss, gradient = run(hidden, head, targets, 0.125)

    expected = cross_entropy_reference(hidden @ head.T, targets, 0.125, IGNORE)
    (expected_gradient,) = torch.autograd.grad(expected, hidden)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert relative_error(loss, expected) <= TOLERANCES[dtype]
    assert relative_error(gradient, expected_gradient) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_the_z_loss_and_its_gradient_equal_the_reference(dtype: torch.dtype) -> None:
    leaf = (5 * torch.randn(50, 97)).to(dtype).requires_grad_()
    targets = targets_of(50, 97)

    loss = cross_entropy_(leaf * 1, targets, 0.125, IGNORE, z_loss=0.1)
    (gradient,) = torch.autograd.grad(loss, leaf)

    expected = cross_entropy_reference(leaf, targets, 0.125, IGNORE, z_loss=0.1)
    (expected_gradient,) = torch.autograd.grad(expected, leaf)
    assert relative_error(loss, expected) <= TOLERANCES[dtype]
    assert relative_error(gradient, expected_gradient) <= TOLERANCES[dtype]


def test_the_z_loss_is_the_squared_log_sum_exp_of_the_rows_with_a_target() -> None:
    logits = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    plain = cross_entropy_(logits.clone(), torch.tensor([0, IGNORE]), 0.5, IGNORE)

    loss = cross_entropy_(logits.clone(), torch.tensor([0, IGNORE]), 0.5, IGNORE, z_loss=0.01)

    assert (loss - plain).item() == pytest.approx(0.5 * 0.01 * (1 + math.log(2)) ** 2)


@pytest.mark.parametrize("z_loss", [-1e-4, math.nan])
def test_refuses_a_z_loss_that_is_no_weight(z_loss: float) -> None:
    with pytest.raises(ValueError, match=f"z_loss is {z_loss}, it must be at least 0"):
        cross_entropy_(torch.zeros(1, 2), torch.tensor([0]), 1.0, z_loss=z_loss)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    head, targets = torch.randn(97, 16, dtype=torch.float64), targets_of(50, 97)
    whole_loss, whole_gradient = run(hidden, head, targets, 1.0)
    monkeypatch.setattr(function, "_BLOCK_ELEMENTS", 97 * 7)

    loss, gradient = run(hidden, head, targets, 1.0)

    assert relative_error(loss, whole_loss) <= 1e-15
    assert torch.equal(gradient, whole_gradient)


def test_the_gradient_lies_where_the_logits_were() -> None:
    leaf = torch.randn(4, 7, requires_grad=True)
    logits = leaf * 1
    place = logits.data_ptr()

    loss = cross_entropy_(logits, torch.tensor([1, 2, IGNORE, 3]), 1.0, IGNORE)

    assert logits.data_ptr() == place
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert relative_error(logits, gradient) == 0.0


@pytest.mark.parametrize("filler", [0.0, float("inf"), float("nan")])
def test_rows_without_a_target_give_exactly_zero_whatever_their_logits_are(filler: float) -> None:
    leaf = torch.full((3, 5), filler, requires_grad=True)

    loss = cross_entropy_(leaf * 1, torch.full((3,), IGNORE), 1.0, IGNORE)
    (gradient,) = torch.autograd.grad(loss, leaf)

    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros(3, 5))


def test_the_gradient_of_the_loss_scales_the_gradient_of_the_logits() -> None:
    leaf = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 4, 2])

    (gradient,) = torch.autograd.grad(3 * cross_entropy_(leaf * 1, targets, 0.5, IGNORE), leaf)

    (expected,) = torch.autograd.grad(cross_entropy_reference(leaf, targets, 1.5, IGNORE), leaf)
    assert relative_error(gradient, expected) <= 1e-14


def test_large_logits_do_not_overflow() -> None:
    leaf = torch.tensor([[1e4, -1e4]], requires_grad=True)

    loss = cross_entropy_(leaf * 1, torch.tensor([1]), 1.0, IGNORE)

    assert loss.item() == 2e4


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), r"targets has shape \[3\], it must be \[2\]"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32), "targets is torch.int32, it must be torch.int64"),
        (torch.zeros(3, 2).T, torch.zeros(2, dtype=torch.int64), "logits must be contiguous"),
    ],
)
def test_refuses_what_does_not_fit(logits: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cross_entropy_(logits, targets, 1.0)
