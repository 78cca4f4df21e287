"""The Triton kernels against the plain references: on a CUDA device, or on the CPU in Triton's interpreter.

``test_kernel_triton_interpreted`` runs this file a second time with TRITON_INTERPRET=1.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from infinipipe_executor.pipeline.saved_bytes import SavedBytes
from infinipipe_kernels.cross_entropy import cross_entropy_
from infinipipe_kernels.cross_entropy import function as cross_entropy_function
from infinipipe_kernels.cross_entropy.reference import cross_entropy_reference
from infinipipe_kernels.rms_norm import function as rms_norm_function
from infinipipe_kernels.rms_norm import rms_norm
from infinipipe_kernels.rms_norm.reference import rms_norm_reference
from infinipipe_kernels.swiglu import function as swiglu_function
from infinipipe_kernels.swiglu import swiglu
from infinipipe_kernels.swiglu.reference import swiglu_reference
from support_executor.closeness import TOLERANCES, relative_error

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
IGNORE = -100
DTYPES = {dtype: TOLERANCES.get(dtype, 2e-3) for dtype in (torch.float32, torch.bfloat16, torch.float16)}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(),
        reason="needs a CUDA device; test_kernel_triton_interpreted runs it on the CPU",
    ),
]

Runs = Callable[[bool], None]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Choose the kernels or torch's operators; the kernels unless said otherwise."""

    def choose(triton: bool) -> None:
        for module in (cross_entropy_function, rms_norm_function, swiglu_function):
            monkeypatch.setattr(module, "runs_triton", lambda _: triton)

    choose(True)
    return choose


def leaf(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype).to(DEVICE).requires_grad_()


def assert_equal_up_to_rounding(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for have, wanted in zip(actual, expected, strict=True):
        assert relative_error(have, wanted) <= DTYPES[dtype]


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("tokens", "vocab"), [(0, 5), (1, 7), (5, 97), (3, 4096), (4, 5000)])
def test_loss_and_gradient_equal_the_reference(tokens: int, vocab: int, z_loss: float, dtype: torch.dtype) -> None:
    x = leaf(tokens, vocab, dtype=dtype)
    targets = torch.randint(0, vocab, (tokens,), device=DEVICE)
    targets[1::3] = IGNORE

    loss = cross_entropy_(x * 1, targets, 0.125, IGNORE, z_loss=z_loss)
    (gradient,) = torch.autograd.grad(3 * loss, x)

    wide = x.detach().double().requires_grad_()
    expected = cross_entropy_reference(wide, targets, 0.125, IGNORE, z_loss=z_loss)
    (expected_gradient,) = torch.autograd.grad(3 * expected, wide)
    assert (loss.dtype, gradient.dtype) == (torch.float32, dtype)
    assert_equal_up_to_rounding((loss, gradient), (expected, expected_gradient), dtype)


@pytest.mark.parametrize("filler", [0.0, float("inf"), float("nan")])
def test_rows_without_a_target_give_exactly_zero_whatever_their_logits_are(filler: float) -> None:
    x = torch.full((3, 5000), filler, device=DEVICE, requires_grad=True)

    loss = cross_entropy_(x * 1, torch.full((3,), IGNORE, device=DEVICE), 1.0, IGNORE, z_loss=0.1)
    (gradient,) = torch.autograd.grad(loss, x)

    assert loss.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(x))


def test_the_gradient_of_a_plain_loss_lies_untouched_where_the_logits_were() -> None:
    x = leaf(4, 7, dtype=torch.bfloat16)
    logits = x * 1
    place = logits.data_ptr()

    loss = cross_entropy_(logits, torch.tensor([1, 2, IGNORE, 3], device=DEVICE), 1.0, IGNORE)
    before = logits.detach().clone()
    (gradient,) = torch.autograd.grad(loss, x)

    assert logits.data_ptr() == place
    assert torch.equal(before, gradient)


def test_large_logits_do_not_overflow() -> None:
    x = torch.tensor([[1e4, -1e4]], device=DEVICE, requires_grad=True)

    assert cross_entropy_(x * 1, torch.tensor([1], device=DEVICE), 1.0, IGNORE).item() == 2e4


def test_a_block_of_nothing_but_minus_infinity_takes_no_part() -> None:
    x = torch.randn(2, 5000, device=DEVICE)
    x[:, :4096] = float("-inf")
    targets = torch.tensor([4096, 4999], device=DEVICE)
    x.requires_grad_()

    loss = cross_entropy_(x * 1, targets, 1.0, IGNORE)
    (gradient,) = torch.autograd.grad(loss, x)

    expected = cross_entropy_reference(x, targets, 1.0, IGNORE)
    assert_equal_up_to_rounding((loss, gradient), (expected, *torch.autograd.grad(expected, x)), torch.float32)


@pytest.mark.parametrize("target", [-1, 7, 2**40])
def test_a_target_outside_the_vocabulary_makes_the_loss_nan(target: int) -> None:
    loss = cross_entropy_(torch.zeros(3, 7, device=DEVICE), torch.tensor([0, target, 1], device=DEVICE), 1.0, IGNORE)

    assert loss.isnan()


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize(("tokens", "width"), [(0, 8), (1, 8), (63, 111), (100, 64), (3, 5000)])
def test_a_norm_and_its_gradients_equal_the_reference(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, weight = leaf(tokens, width, dtype=dtype), leaf(width, dtype=dtype)
    gradient = torch.randn(tokens, width).to(dtype).to(DEVICE)

    output = rms_norm(x, weight, 1e-5)
    gradients = torch.autograd.grad(output, (x, weight), gradient)

    wide_x, wide_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    expected = rms_norm_reference(wide_x, wide_weight, 1e-5)
    expected_gradients = torch.autograd.grad(expected, (wide_x, wide_weight), gradient.double())
    assert_equal_up_to_rounding((output, *gradients), (expected, *expected_gradients), dtype)


def test_many_rows_share_a_part_of_the_gradient_of_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    from infinipipe_kernels.rms_norm import triton_kernel  # noqa: PLC0415  # triton may be absent

    monkeypatch.setattr(triton_kernel, "_MOST_PARTS", 2)
    x, weight = leaf(601, 111, dtype=torch.float32), leaf(111, dtype=torch.float32)

    gradients = torch.autograd.grad(rms_norm(x, weight, 1e-5).square().sum(), (x, weight))
    again = torch.autograd.grad(rms_norm(x, weight, 1e-5).square().sum(), (x, weight))

    expected = torch.autograd.grad(rms_norm_reference(x, weight, 1e-5).square().sum(), (x, weight))
    assert_equal_up_to_rounding(gradients, expected, torch.float32)
    assert all(map(torch.equal, gradients, again))


def test_a_row_of_zeros_stays_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(2, 8, device=DEVICE, requires_grad=True)

    output = rms_norm(x, torch.ones(8, device=DEVICE), 1e-5)
    (gradient,) = torch.autograd.grad(output.sum(), x)

    assert torch.equal(output, torch.zeros_like(output))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize(("tokens", "width"), [(0, 8), (1, 1), (63, 111)])
def test_an_activation_and_its_gradients_equal_the_reference(tokens: int, width: int, dtype: torch.dtype) -> None:
    gate, up = leaf(tokens, width, dtype=dtype), leaf(tokens, width, dtype=dtype)
    gradient = torch.randn(tokens, width).to(dtype).to(DEVICE)

    output = swiglu(gate, up)
    gradients = torch.autograd.grad(output, (gate, up), gradient)

    wide = [t.detach().double().requires_grad_() for t in (gate, up)]
    expected = swiglu_reference(*wide)
    expected_gradients = torch.autograd.grad(expected, wide, gradient.double())
    assert_equal_up_to_rounding((output, *gradients), (expected, *expected_gradients), dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # numpy's, under the interpreter
def test_large_gates_stay_finite() -> None:
    gate = torch.tensor([[-1e4, 1e4]], device=DEVICE, requires_grad=True)

    output = swiglu(gate, torch.ones(1, 2, device=DEVICE))
    (gradient,) = torch.autograd.grad(output.sum(), gate)

    assert torch.equal(output, torch.tensor([[0.0, 1e4]], device=DEVICE))
    assert torch.equal(gradient, torch.tensor([[0.0, 1.0]], device=DEVICE))


def test_inputs_and_gradients_with_gaps_are_read_right() -> None:
    x, up, weight = leaf(7, 10, dtype=torch.float32), leaf(7, 10, dtype=torch.float32), leaf(7, dtype=torch.float32)

    output = rms_norm(swiglu(x.T, up.T), weight, 1e-5)  # the gradient of a sum is one number, spread out
    gradients = torch.autograd.grad(output.sum(), (x, up, weight))

    expected = rms_norm_reference(swiglu_reference(x.T, up.T), weight, 1e-5)
    expected_gradients = torch.autograd.grad(expected.sum(), (x, up, weight))
    assert_equal_up_to_rounding((output, *gradients), (expected, *expected_gradients), torch.float32)


def test_the_kernels_save_what_torchs_operators_save(runs: Runs) -> None:
    def saved_bytes() -> list[int]:
        saved = []
        x, up, weight = (leaf(*shape, dtype=torch.bfloat16) for shape in ((9, 16), (9, 16), (16,)))
        targets = torch.zeros(9, dtype=torch.int64, device=DEVICE)
        operators: list[Callable[[], Tensor]] = [
            lambda: rms_norm(x, weight, 1e-5),
            lambda: swiglu(x, up),
            lambda: cross_entropy_(x * 1, targets, 1.0, IGNORE),
        ]
        for operator in operators:
            meter = SavedBytes()
            with meter:
                output = operator()
            saved.append(meter.live_bytes)
            del output
        return saved

    by_kernels = saved_bytes()
    runs(False)

    assert by_kernels == saved_bytes()
    assert all(by_kernels)
