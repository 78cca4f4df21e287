"""Block attention against torch and the plain reference."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.attention import Segments, backend_for, merge_blocks
from infinipipe_kernels.attention.backend import AttentionBackend
from infinipipe_kernels.attention.cpu import CpuAttention
from infinipipe_kernels.attention.cuda import CudaAttention
from infinipipe_kernels.attention.reference import ReferenceAttention
from support_executor.closeness import TOLERANCES, relative_error

Heads = tuple[int, int]


def tensors(
    segments: Segments, heads: Heads, dtype: torch.dtype, head_dim: int = 16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a gradient of the output."""
    queries, keys = (segments.query_count, heads[0], head_dim), (segments.key_count, heads[1], head_dim)
    q, k, v, gradient = (torch.randn(shape, dtype=dtype) for shape in (queries, keys, keys, queries))
    return q, k, v, gradient


def torch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Torch's own attention under a mask over the whole pack."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(0, 1)


@pytest.mark.parametrize("backend", [CpuAttention(), ReferenceAttention()], ids=["cpu", "reference"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("lengths", [[1], [63, 1, 37], [5, 0, 11, 0]], ids=str)
def test_a_pack_under_one_eager_mask_and_a_call_a_segment_agree(
    lengths: list[int], heads: Heads, backend: AttentionBackend
) -> None:
    segments = Segments.own(lengths)
    q, k, v, gradient = tensors(segments, heads, torch.float64)
    of_token = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (of_token[:, None] == of_token[None, :]).tril()

    out, lse = backend.forward(q, k, v, segments, is_causal=True)
    gradients = backend.backward(gradient, q, k, v, out, lse, segments, is_causal=True)

    q, k, v = leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    expected = torch_attention(q, k, v, mask)
    expected_gradients = torch.autograd.grad(expected, leaves, gradient)
    for actual, wanted in zip((out, *gradients), (expected, *expected_gradients), strict=True):
        assert relative_error(actual, wanted) <= 1e-12


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("query_tokens", "key_tokens"), [(1, 3), (37, 100), (111, 5)])
def test_a_block_without_a_mask_equals_the_reference(query_tokens: int, key_tokens: int, dtype: torch.dtype) -> None:
    segments = Segments.block(query_tokens, key_tokens)
    q, k, v, gradient = tensors(segments, (4, 2), dtype)

    out, lse = CpuAttention().forward(q, k, v, segments, is_causal=False)
    gradients = CpuAttention().backward(gradient, q, k, v, out, lse, segments, is_causal=False)

    q, k, v, gradient = (x.double() for x in (q, k, v, gradient))
    expected, expected_lse = ReferenceAttention().forward(q, k, v, segments, is_causal=False)
    expected_gradients = ReferenceAttention().backward(
        gradient, q, k, v, expected, expected_lse, segments, is_causal=False
    )
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    for actual, wanted in zip((out, lse, *gradients), (expected, expected_lse, *expected_gradients), strict=True):
        assert relative_error(actual, wanted) <= TOLERANCES[dtype]


@pytest.mark.parametrize("cuts", [[30], [1, 40], [17, 17, 7], [5, 4, 3, 2, 1]], ids=str)
def test_context_blocks_and_the_own_block_merge_to_causal_attention_over_everything(cuts: list[int]) -> None:
    backend, own_tokens = CpuAttention(), 13
    context_tokens = sum(cuts)
    everything = Segments.own([context_tokens + own_tokens])
    q, k, v, gradient = tensors(everything, (4, 2), torch.float64)
    own_q, own_gradient = q[context_tokens:], gradient[context_tokens:]
    blocks = torch.split(torch.arange(context_tokens), cuts)

    out, lse = backend.forward(
        own_q, k[context_tokens:], v[context_tokens:], Segments.own([own_tokens]), is_causal=True
    )
    for rows in blocks:
        segments = Segments.block(own_tokens, len(rows))
        out, lse = merge_blocks(out, lse, *backend.forward(own_q, k[rows], v[rows], segments, is_causal=False))
    key_gradients = [
        backend.backward(
            own_gradient, own_q, k[rows], v[rows], out, lse, Segments.block(own_tokens, len(rows)), is_causal=False
        )[1]
        for rows in blocks
    ]

    expected, expected_lse = ReferenceAttention().forward(q, k, v, everything, is_causal=True)
    only_own = torch.cat([torch.zeros_like(gradient[:context_tokens]), own_gradient])
    _, expected_key_gradient, _ = ReferenceAttention().backward(
        only_own, q, k, v, expected, expected_lse, everything, is_causal=True
    )
    assert relative_error(out, expected[context_tokens:]) <= 1e-12
    assert relative_error(torch.cat(key_gradients), expected_key_gradient[:context_tokens]) <= 1e-12


def test_merging_in_bf16_rounds_once() -> None:
    q, k, v, _ = tensors(Segments.block(9, 64), (4, 4), torch.bfloat16)
    backend, exact = CpuAttention(), ReferenceAttention()

    out, lse = backend.forward(q, k[:4], v[:4], Segments.block(9, 4), is_causal=False)
    for start in range(4, 64, 4):
        rows = slice(start, start + 4)
        out, lse = merge_blocks(out, lse, *backend.forward(q, k[rows], v[rows], Segments.block(9, 4), is_causal=False))

    expected, _ = exact.forward(q.double(), k.double(), v.double(), Segments.block(9, 64), is_causal=False)
    assert out.dtype == torch.float32
    assert relative_error(out, expected) <= 1e-2


@pytest.mark.parametrize(
    ("shapes", "segments", "is_causal", "message"),
    [
        ([(3, 4, 8), (4, 4, 8)], Segments.block(3, 4), True, "as many keys as queries"),
        ([(3, 4, 8), (0, 4, 8)], Segments.block(3, 0), False, "query rows 0 to 3 has no keys"),
        ([(3, 4, 8), (3, 3, 8)], Segments.own([3]), True, "4 query heads are no multiple of 3 key heads"),
        ([(3, 4, 8), (3, 4, 9)], Segments.own([3]), True, r"k has shape \[3, 4, 9\], it must be \[3, \*, 8\]"),
        ([(3, 4, 8), (3, 4, 8)], Segments.own([4]), True, r"q has shape \[3, 4, 8\], it must be \[4, \*, \*\]"),
    ],
)
def test_refuses_blocks_that_do_not_fit(
    shapes: list[tuple[int, ...]], segments: Segments, is_causal: bool, message: str
) -> None:
    q, k = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        CpuAttention().forward(q, k, k, segments, is_causal=is_causal)


@pytest.mark.parametrize("offsets", [(1, 2), (0, 3, 2), ()], ids=str)
def test_refuses_offsets_that_fall_or_do_not_start_at_zero(offsets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must start at 0 and never fall"):
        Segments(offsets, offsets)


def test_the_cuda_backend_gives_the_shapes_of_the_interface() -> None:
    segments = Segments.own([5, 11])
    backend = backend_for(torch.device("meta"))
    q = torch.empty(16, 4, 32, dtype=torch.bfloat16, device="meta")
    k = torch.empty(16, 2, 32, dtype=torch.bfloat16, device="meta")

    out, lse = backend.forward(q, k, k, segments, is_causal=True)
    grad_q, grad_k, grad_v = backend.backward(out, q, k, k, out, lse, segments, is_causal=True)

    assert isinstance(backend, CudaAttention)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (4, 16), torch.float32)
    assert (grad_q.shape, grad_k.shape, grad_v.shape) == (q.shape, k.shape, k.shape)


@pytest.mark.parametrize(("rows", "refused"), [(2**31 // 1024 - 1, False), (2**31 // 1024, True)])
def test_the_cuda_backend_refuses_packs_whose_elements_int32_cannot_count(rows: int, refused: bool) -> None:
    q = torch.empty(rows, 8, 128, dtype=torch.bfloat16, device="meta")
    segments = Segments.own([rows])
    if not refused:
        assert CudaAttention().forward(q, q, q, segments, is_causal=True)[0].shape == q.shape
        return
    with pytest.raises(ValueError, match=f"q spans {rows} rows x 1024 elements = 2147483648, .*: use shorter chunks"):
        CudaAttention().forward(q, q, q, segments, is_causal=True)


@pytest.mark.parametrize("wide", ["q", "k", "v"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_cuda_backend_takes_rows_of_just_what_int32_counts_and_not_one_element_more(
    wide: str, direction: str
) -> None:
    def run(row_elements: int) -> torch.Size:
        narrow = torch.empty(1, 1, 8, dtype=torch.bfloat16, device="meta")
        padded = torch.empty_strided((1, 1, 8), (row_elements, 8, 1), dtype=torch.bfloat16, device="meta")
        q, k, v = (padded if name == wide else narrow for name in "qkv")
        backend, segments = CudaAttention(), Segments.own([1])
        if direction == "forward":
            return backend.forward(q, k, v, segments, is_causal=True)[0].shape
        lse = torch.empty(1, 1, device="meta")
        return backend.backward(narrow, q, k, v, narrow, lse, segments, is_causal=True)[0].shape

    assert run(2**31 - 1) == (1, 1, 8)
    with pytest.raises(ValueError, match=f"{wide} spans 1 rows x 2147483648 elements = 2147483648, .*: use shorter"):
        run(2**31)


def test_the_cuda_backend_refuses_types_that_its_kernels_lack() -> None:
    q = torch.empty(3, 4, 32, device="meta")
    with pytest.raises(ValueError, match=r"q is torch.float32, attention on CUDA takes torch.float16"):
        CudaAttention().forward(q, q, q, Segments.own([3]), is_causal=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("segments", "is_causal"),
    [(Segments.own([63, 1, 37]), True), (Segments.block(37, 100), False), (Segments.block(1, 1), False)],
    ids=["own", "context", "one token"],
)
def test_the_cuda_backend_equals_the_reference(segments: Segments, is_causal: bool) -> None:
    q, k, v, gradient = (x.cuda() for x in tensors(segments, (4, 2), torch.bfloat16, head_dim=64))
    backend, exact = CudaAttention(), ReferenceAttention()

    out, lse = backend.forward(q, k, v, segments, is_causal=is_causal)
    gradients = backend.backward(gradient, q, k, v, out, lse, segments, is_causal=is_causal)

    q, k, v, gradient = (x.double() for x in (q, k, v, gradient))
    expected, expected_lse = exact.forward(q, k, v, segments, is_causal=is_causal)
    expected_gradients = exact.backward(gradient, q, k, v, expected, expected_lse, segments, is_causal=is_causal)
    for actual, wanted in zip((out, lse, *gradients), (expected, expected_lse, *expected_gradients), strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=3e-2, atol=3e-2)
