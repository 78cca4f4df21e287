"""The Triton kernels beyond 2^31 elements, on a GPU that holds them."""

from importlib.util import find_spec

import pytest
import torch

from infinipipe_kernels.cross_entropy import cross_entropy_
from infinipipe_kernels.cross_entropy.reference import cross_entropy_reference
from infinipipe_kernels.swiglu import swiglu
from infinipipe_kernels.swiglu.reference import swiglu_reference
from support_executor.closeness import TOLERANCES, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_last_row_of_logits_beyond_int32_gets_its_own_gradient() -> None:
    vocab = 131072
    x = torch.zeros(2**31 // vocab + 1, vocab, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    targets = torch.full((len(x),), -100, device="cuda")
    targets[-1] = 5
    last = torch.randn(1, vocab, device="cuda").bfloat16().requires_grad_()
    logits = x * 1
    logits.data[-1] = last.detach()[0]

    loss = cross_entropy_(logits, targets, 1.0)

    expected = cross_entropy_reference(last, targets[-1:], 1.0)
    (gradient,) = torch.autograd.grad(expected, last)
    assert relative_error(loss, expected) <= TOLERANCES[torch.bfloat16]
    assert relative_error(logits[-1:], gradient) <= TOLERANCES[torch.bfloat16]
    assert not logits[0].any()


def test_the_last_elements_beyond_int32_are_activated() -> None:
    gate = torch.zeros(2**31 // 4096 + 1, 4096, dtype=torch.bfloat16, device="cuda")
    gate[-1] = torch.randn(4096, device="cuda")

    output = swiglu(gate, gate)

    assert relative_error(output[-1:], swiglu_reference(gate[-1:], gate[-1:])) <= TOLERANCES[torch.bfloat16]
