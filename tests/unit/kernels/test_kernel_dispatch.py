"""Where Triton's kernels run, and that everything else runs without Triton."""

import importlib
import sys
from types import ModuleType
from typing import cast

import pytest
import torch

from infinipipe_kernels.dispatch import describe_operators, runs_triton


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", cast("ModuleType", None))  # as if it were not there


@pytest.mark.usefixtures("without_triton")
def test_without_triton_the_operators_of_torch_run_on_cuda_and_it_is_said() -> None:
    description = describe_operators(torch.device("cuda"))

    assert description == "operators of torch (triton is not installed: pip install triton)"


def test_the_cpu_runs_the_operators_of_torch() -> None:
    assert not runs_triton(torch.zeros(1))
    assert describe_operators(torch.device("cpu")) == "operators of torch (the device is cpu)"


@pytest.mark.usefixtures("without_triton")
def test_the_operators_import_and_run_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "infinipipe_kernels"]:
        monkeypatch.delitem(sys.modules, name)
    rms_norm, swiglu, cross_entropy = (
        importlib.import_module(f"infinipipe_kernels.{name}") for name in ("rms_norm", "swiglu", "cross_entropy")
    )
    x = torch.randn(3, 8, requires_grad=True)

    hidden = swiglu.swiglu(rms_norm.rms_norm(x, torch.ones(8), 1e-5), x)
    torch.autograd.backward(cross_entropy.cross_entropy_(hidden, torch.tensor([0, 1, 2]), 1.0))

    assert x.grad is not None
    assert x.grad.isfinite().all()
