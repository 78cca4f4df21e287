"""The Triton kernels compile for the GPUs that they are written for, without one."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from infinipipe_kernels.cross_entropy import cross_entropy_
from infinipipe_kernels.cross_entropy import function as cross_entropy_function
from infinipipe_kernels.rms_norm import function as rms_norm_function
from infinipipe_kernels.rms_norm import rms_norm
from infinipipe_kernels.swiglu import function as swiglu_function
from infinipipe_kernels.swiglu import swiglu

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

KERNELS = {
    "cross_entropy_kernel",
    "multiply_kernel",
    "rms_norm_forward_kernel",
    "rms_norm_backward_kernel",
    "swiglu_forward_kernel",
    "swiglu_backward_kernel",
}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], dict[str, Any]]:
    """Everything that the operators would launch on a GPU of a compute capability, compiled and not launched."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    compiled: dict[str, Any] = {}
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled[self.__name__] = run(self, *args, grid=grid, warmup=True, **kwargs)

    def compile_all(capability: int) -> dict[str, Any]:
        class Driver:
            """Stands for the driver of a GPU that is not there."""

            def get_current_target(self) -> Any:
                return GPUTarget("cuda", capability, 32)

            def get_current_device(self) -> int:
                return capability

            def get_current_stream(self, _device: int) -> int:
                return 0

        monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
        run_operators()
        return compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    for module in (cross_entropy_function, rms_norm_function, swiglu_function):
        monkeypatch.setattr(module, "runs_triton", lambda _: True)
    return compile_all


def run_operators() -> None:
    """Forward and backward passes on tensors of more than 2^31 elements each."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)

    rows = 2**31 // 4096 + 1
    targets = torch.empty(2**31 // 131072 + 1, dtype=torch.int64, device="meta")
    for output in (
        cross_entropy_(leaf(len(targets), 131072) * 1, targets, 1.0, z_loss=1e-4),
        rms_norm(leaf(rows, 4096), leaf(4096), 1e-5).sum(),
        swiglu(leaf(rows, 4096), leaf(rows, 4096)).sum(),
    ):
        torch.autograd.backward(output)


@pytest.mark.parametrize("capability", [80, 90, 100], ids="sm_{}".format)
def test_what_the_operators_launch_compiles_to_machine_code(
    capability: int, launches: Callable[[int], dict[str, Any]]
) -> None:
    compiled = launches(capability)

    assert set(compiled) == KERNELS
    for name, kernel in compiled.items():
        assert re.search(rf"^\.target sm_{capability}", kernel.asm["ptx"], re.MULTILINE), name
        assert kernel.asm["cubin"][:4] == b"\x7fELF", name
        # Rows and blocks are multiplied in int64: products of int32 would wrap beyond 2^31 elements.
        products = re.findall(r"arith\.muli .* : (?:tensor<\d+(?:x\d+)*x)?(i\d+)", kernel.asm["ttir"])
        assert set(products) == {"i64"}, name
