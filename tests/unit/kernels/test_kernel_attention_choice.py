"""Which attention runs where, and how flash-attn is called where it is there.

Flash-attn runs on CUDA only. A module of the same name stands for it: with the arguments that flash-attn 2.8 documents,
computing what the reference computes.
"""

import sys
from types import ModuleType
from typing import cast

import pytest
import torch
from torch import Tensor

from infinipipe_kernels.attention import AttentionBackend, Segments, backend_for, choose_backend
from infinipipe_kernels.attention.cpu import CpuAttention
from infinipipe_kernels.attention.cuda import CudaAttention
from infinipipe_kernels.attention.reference import ReferenceAttention
from support_executor.closeness import TOLERANCES, relative_error

CUDA = torch.device("cuda")


def segments_of(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int) -> Segments:
    """Read offsets as flash-attn does."""
    segments = Segments(tuple(cu_seqlens_q.tolist()), tuple(cu_seqlens_k.tolist()))
    assert (cu_seqlens_q.dtype, cu_seqlens_k.dtype) == (torch.int32, torch.int32)
    assert (max_seqlen_q, max_seqlen_k) == (segments.longest_query, segments.longest_key)
    return segments


def varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    segments = segments_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    assert softmax_scale == q.shape[2] ** -0.5
    assert (dropout_p, window_size_left, window_size_right, softcap) == (0.0, -1, -1, 0.0)
    out, lse = ReferenceAttention().forward(q, k, v, segments, is_causal=causal)
    return out, lse, torch.empty(0), torch.empty(2, dtype=torch.int64)


def varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    segments = segments_of(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    assert deterministic == torch.are_deterministic_algorithms_enabled()
    assert all(x.is_contiguous() for x in (dout, out, softmax_lse))
    gradients = ReferenceAttention().backward(dout, q, k, v, out, softmax_lse, segments, is_causal=causal)
    for place, gradient in zip((dq, dk, dv), gradients, strict=True):
        assert place is not None
        place.copy_(gradient)
    return torch.empty(0)


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for flash-attn 2.8.3."""
    package, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    package.__dict__["__version__"] = "2.8.3"
    interface.__dict__["_flash_attn_varlen_forward"] = varlen_forward
    interface.__dict__["_flash_attn_varlen_backward"] = varlen_backward
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", interface)
    forget_own_module(monkeypatch)
    return interface


def forget_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next choice import flash-attn anew, and the one after this test, too."""
    import infinipipe_kernels.attention as package  # noqa: PLC0415

    name = "infinipipe_kernels.attention.flash"
    monkeypatch.setitem(sys.modules, name, cast("ModuleType", None))  # undone to what was there before
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(package, "flash", None, raising=False)
    monkeypatch.delattr(package, "flash")


def test_flash_attn_is_taken_on_cuda_where_it_is_installed(flash_attn: ModuleType) -> None:
    choice = choose_backend(CUDA)

    assert type(choice.backend).__name__ == "FlashAttention"
    assert choice.description == "flash-attn 2.8.3 (it is installed)"


def test_without_flash_attn_torchs_kernels_are_taken_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", cast("ModuleType", None))  # as if it were not there
    forget_own_module(monkeypatch)

    choice = choose_backend(CUDA)

    assert isinstance(choice.backend, CudaAttention)
    assert choice.description == "torch's own flash kernels (flash-attn is not installed)"


def test_a_flash_attn_that_cannot_be_imported_is_named_with_its_error(
    flash_attn: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> object:
        raise ImportError(f"undefined symbol in {name}", name="flash_attn_2_cuda")

    flash_attn.__dict__.clear()
    flash_attn.__dict__["__getattr__"] = fail

    choice = choose_backend(CUDA)

    assert isinstance(choice.backend, CudaAttention)
    assert choice.description.startswith("torch's own flash kernels (flash-attn cannot be imported: undefined symbol")


def test_the_cpu_takes_its_own_kernel_and_says_why() -> None:
    choice = choose_backend(torch.device("cpu"))

    assert isinstance(choice.backend, CpuAttention)
    assert choice.description.endswith("(the device is cpu)")


def test_shapes_alone_go_the_way_of_cuda(flash_attn: ModuleType) -> None:
    assert isinstance(backend_for(torch.device("meta")), CudaAttention)


@pytest.mark.parametrize(
    ("segments", "is_causal"),
    [(Segments.own([63, 1, 0, 37]), True), (Segments.block(37, 100), False), (Segments.block(1, 1), False)],
    ids=["own", "context", "one token"],
)
def test_flash_attn_gets_the_block_and_gives_what_the_interface_promises(
    flash_attn: ModuleType, segments: Segments, is_causal: bool
) -> None:
    backend, exact = backend_for(CUDA), ReferenceAttention()
    q, gradient = torch.randn(2, segments.query_count, 4, 16).bfloat16()
    k, v = torch.randn(2, segments.key_count, 2, 16).bfloat16()
    merged_gradient = gradient.transpose(0, 1).contiguous().transpose(0, 1)  # as attention to a context gets them

    out, lse = backend.forward(q, k, v, segments, is_causal=is_causal)
    merged_lse = lse.T.contiguous().T
    gradients = backend.backward(merged_gradient, q, k, v, out, merged_lse, segments, is_causal=is_causal)

    expected, expected_lse = exact.forward(q, k, v, segments, is_causal=is_causal)
    wanted = exact.backward(gradient, q, k, v, expected, expected_lse, segments, is_causal=is_causal)
    for have, want in zip((out, lse, *gradients), (expected, expected_lse, *wanted), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        assert relative_error(have, want) <= TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("name", ["flash", "cuda"])
@pytest.mark.parametrize(("rows", "refused"), [(2**31 // 128 - 1, False), (2**31 // 128, True)])
def test_both_kernels_for_cuda_refuse_elements_that_int32_cannot_count(
    flash_attn: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, rows: int, refused: bool
) -> None:
    def forward_of_shapes(q: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor, None, None]:
        return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32), None, None

    flash_attn.__dict__["_flash_attn_varlen_forward"] = forward_of_shapes
    backend: AttentionBackend = backend_for(CUDA) if name == "flash" else CudaAttention()
    q = torch.empty(rows, 1, 128, dtype=torch.bfloat16, device="meta")

    if not refused:
        assert backend.forward(q, q, q, Segments.own([rows]), is_causal=True)[0].shape == q.shape
        return
    with pytest.raises(ValueError, match=f"q spans {rows} rows x 128 elements = 2147483648, .*: use shorter chunks"):
        backend.forward(q, q, q, Segments.own([rows]), is_causal=True)


def test_flash_attn_refuses_types_that_its_kernels_lack(flash_attn: ModuleType) -> None:
    q = torch.empty(3, 4, 32)
    with pytest.raises(ValueError, match=r"q is torch.float32, attention on CUDA takes torch.float16"):
        backend_for(CUDA).forward(q, q, q, Segments.own([3]), is_causal=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("segments", "is_causal"),
    [(Segments.own([63, 1, 0, 37]), True), (Segments.block(37, 100), False), (Segments.block(1, 1), False)],
    ids=["own", "context", "one token"],
)
def test_the_real_flash_attn_equals_the_reference(segments: Segments, is_causal: bool) -> None:
    pytest.importorskip("flash_attn")
    backend, exact = backend_for(CUDA), ReferenceAttention()
    q, gradient = torch.randn(2, segments.query_count, 4, 64, device=CUDA).bfloat16()
    k, v = torch.randn(2, segments.key_count, 2, 64, device=CUDA).bfloat16()

    out, lse = backend.forward(q, k, v, segments, is_causal=is_causal)
    gradients = backend.backward(gradient, q, k, v, out, lse, segments, is_causal=is_causal)

    q, k, v, gradient = (x.double() for x in (q, k, v, gradient))
    expected, expected_lse = exact.forward(q, k, v, segments, is_causal=is_causal)
    wanted = exact.backward(gradient, q, k, v, expected, expected_lse, segments, is_causal=is_causal)
    for have, want in zip((out, lse, *gradients), (expected, expected_lse, *wanted), strict=True):
        torch.testing.assert_close(have.double(), want, rtol=3e-2, atol=3e-2)
