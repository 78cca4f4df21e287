"""The memory of one stage of a plan, measured without a GPU and without its memory.

The stage, its runner and the kernels for CUDA run on meta tensors, which have shapes and no elements; a dispatch mode
counts the bytes of every storage from the operator that makes it until it is gone. Parameters and their gradients are
left out: what ZeRO-3 holds of them is no matter of the plan. Messages of the neighbours are empty tensors.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.schedule import share_tokens
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.parallel.channels import Channel, Channels
from infinipipe_executor.pipeline.runner import StepRunner


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Counts the bytes of all storages on meta that are made while it is entered.

    Args:
        parameters: Parameters; they and whatever has the shape of one are not counted.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, Any] = {p.untyped_storage()._cdata: None for p in parameters}
        self._shapes = {_shape_key(p) for p in parameters}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.device.type == "meta":
                self._count(tensor)
        return made

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size_bytes = storage._cdata, storage.nbytes()
        if key in self._known or not size_bytes or _shape_key(tensor) in self._shapes:
            return
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._known[key] = weakref.ref(storage, lambda _: self._forget(key, size_bytes))

    def _forget(self, key: int, size_bytes: int) -> None:
        del self._known[key]
        self.live_bytes -= size_bytes


class MeasuredStage(NamedTuple):
    """The most bytes beside parameters and their gradients, and the elements of the gradients, whole."""

    peak_bytes: int
    gradient_count: int


def measure_stage(
    config: ModelConfig, plan: ExecutionPlan, batch: Batch, sp_size: int, stage_index: int, stage_layers: Sequence[int]
) -> MeasuredStage:
    """Run one stage of a plan in bf16 on its first rank."""
    pp_size = len(stage_layers)
    with torch.device("meta"):
        stage = Stage(config, pp_size, stage_index, torch.bfloat16, stage_layers).to(torch.bfloat16)
    edges = [Channel(cast("Any", None), peer_rank=0) for _ in range(4)]
    mesh = Mesh(
        dp_size=1,
        pp_size=pp_size,
        sp_size=sp_size,
        dp_rank=0,
        pp_rank=stage_index,
        sp_rank=0,
        device=torch.device("meta"),
        dp_group=cast("Any", None),
        sp_group=cast("Any", None),
        device_mesh=cast("Any", None),
        channels=Channels(*edges),
        ends_group=None,
    )
    meter = LiveBytes(list(stage.parameters()))
    shares = {share for one in plan.pipelines[0].chunks for share in share_tokens(one.token_count, sp_size)}
    widths = {width for parameter in stage.parameters() for width in parameter.shape}
    assert not shares & widths, "activations can be told from gradients of parameters by their shape"
    with _kernels_of_cuda_on_meta(), meter:
        StepRunner(stage, mesh).run(plan, batch)
    gradients = [parameter.grad for parameter in stage.parameters()]
    return MeasuredStage(meter.peak_bytes, sum(gradient.numel() for gradient in gradients if gradient is not None))


class _Done:
    """A message that has left, or has come."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class _NoLaunch:
    """A kernel that is not run, only what its wrapper allocates."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *_args, **_kwargs: None


@contextmanager
def _kernels_of_cuda_on_meta() -> Iterator[None]:
    """Take the wrappers of the Triton kernels for meta tensors, and talk to no other rank."""
    kernels = "infinipipe_kernels"
    launches = {
        "rms_norm": ("rms_norm_forward_kernel", "rms_norm_backward_kernel"),
        "swiglu": ("swiglu_forward_kernel", "swiglu_backward_kernel"),
        "cross_entropy": ("cross_entropy_kernel", "multiply_kernel"),
    }
    with ExitStack() as stack:
        for name, kernel_names in launches.items():
            stack.enter_context(patch(f"{kernels}.{name}.function.runs_triton", lambda _: True))
            for kernel_name in kernel_names:
                stack.enter_context(patch(f"{kernels}.{name}.triton_kernel.{kernel_name}", _NoLaunch()))
        for name in ("isend", "irecv", "all_to_all_single", "all_reduce"):
            stack.enter_context(patch(f"torch.distributed.{name}", lambda *_args, **_kwargs: _Done()))
        for name in ("reduce_in_next_backward", "gather_ahead", "sum_tied_gradients"):  # of sharded parameters
            stack.enter_context(patch(f"infinipipe_executor.pipeline.runner.{name}", _ignore))
        stack.enter_context(patch.object(Tensor, "tolist", lambda loss: [0.0] * len(loss)))  # it has no value
        yield


def _ignore(*_args: object, **_kwargs: object) -> None:
    pass


def _shape_key(tensor: Tensor) -> tuple[int, ...]:
    return tuple(sorted(tensor.shape))
