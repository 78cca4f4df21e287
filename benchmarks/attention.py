"""Measure the attention of the CPU beside torch's own with a mask, forward and backward.

    python benchmarks/attention.py [--threads 1] [--rounds 15]

Both ways run in turns and of each the fastest round counts, in seconds of the processor, so that other work on the
machine hardly counts. Masked attention is given what favours it: the mask is made beforehand, and keys of context and
chunk lie in one tensor. Prints one line a case; ``ratio`` is its time over ours, above 1 where ours is faster.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.attention import Segments, merge_blocks
from infinipipe_kernels.attention.cpu import CpuAttention


@dataclass(frozen=True)
class Case:
    """A chunk to attend to.

    Attributes:
        name: What it is.
        context_tokens: Tokens of the earlier slice that the first segment attends to as well.
        lengths_tokens: Tokens of every segment of the chunk.
        heads: Query heads.
        kv_heads: Key heads.
        head_dim: Width of a head.
    """

    name: str
    context_tokens: int
    lengths_tokens: tuple[int, ...]
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64

    @property
    def token_count(self) -> int:
        """Tokens of the chunk."""
        return sum(self.lengths_tokens)


PACK = (37, 64, 128, 200, 255, 300, 16, 24) * 2
CASES = (
    Case("slice of 512 behind a context of 2048", 2048, (512,)),
    Case("the same, 8 query heads on 2 key heads", 2048, (512,), kv_heads=2),
    Case("pack of 16 segments, 2048 tokens", 0, PACK),
    Case("pack of 128 segments of 16 tokens", 0, (16,) * 128),
    Case("hybrid: 512 behind 2048, with 16 segments", 2048, (512, *PACK)),
    Case("one whole sequence of 2048", 0, (2048,)),
    Case("slice of 64 behind a context of 64", 64, (64,)),
)
DTYPES = (torch.float32, torch.bfloat16)


def main() -> None:
    """Measure every case in every type and print the table."""
    parser = argparse.ArgumentParser(description="Measure the attention of the CPU beside torch's own with a mask.")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; ranks of a run use one")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of both ways; the fastest counts")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| case | type | ours ms | masked ms | ratio |\n|---|---|---:|---:|---:|")
    for case in CASES:
        for dtype in DTYPES:
            ours_s, masked_s = measure(case, dtype, arguments.rounds)
            times = f"{1e3 * ours_s:.1f} | {1e3 * masked_s:.1f} | {masked_s / ours_s:.2f}"
            print(f"| {case.name} | {str(dtype).removeprefix('torch.')} | {times} |", flush=True)


def measure(case: Case, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """Seconds of one forward and backward pass, ours and with a mask."""
    generator = torch.Generator().manual_seed(0)
    queries = (case.token_count, case.heads, case.head_dim)
    keys = (case.context_tokens + case.token_count, case.kv_heads, case.head_dim)
    q, k, v, gradient = (torch.randn(shape, generator=generator).to(dtype) for shape in (queries, keys, keys, queries))
    mask = visible(case)
    ways: tuple[Callable[[], tuple[Tensor, ...]], ...] = (
        lambda: run_blocks(case, q, k, v, gradient),
        lambda: run_masked(q, k, v, gradient, mask),
    )
    check_equal(case, *(way() for way in ways))
    fastest = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, way in enumerate(ways):
            start_s = time.process_time()
            way()
            fastest[index] = min(fastest[index], time.process_time() - start_s)
    return fastest[0], fastest[1]


def check_equal(case: Case, ours: tuple[Tensor, ...], masked: tuple[Tensor, ...]) -> None:
    """Refuse to measure two ways that do not compute the same, up to the rounding of bf16."""
    out, grad_q, *grads = masked
    parts = (part for grad in grads for part in torch.split(grad, [case.context_tokens, case.token_count]))
    for actual, wanted in zip(ours, (out, grad_q, *parts), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=5e-2, atol=5e-2)


def visible(case: Case) -> Tensor:
    """Which key every query sees, bool ``[tokens, context + tokens]``."""
    mask = torch.zeros(case.token_count, case.context_tokens + case.token_count, dtype=torch.bool)
    mask[: case.lengths_tokens[0], : case.context_tokens] = True
    ends = list(accumulate(case.lengths_tokens))
    for length, end in zip(case.lengths_tokens, ends, strict=True):
        keys = slice(case.context_tokens + end - length, case.context_tokens + end)
        mask[end - length : end, keys] = torch.ones(length, length, dtype=torch.bool).tril()
    return mask


def run_blocks(case: Case, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Attend as a chunk does, to its own segments and then to the context.

    Returns:
        Output and gradient of the queries, then those of the keys and of the values: the context's and the chunk's.
    """
    backend, own = CpuAttention(), Segments.own(case.lengths_tokens)
    context, rows = slice(0, case.context_tokens), slice(0, case.lengths_tokens[0])
    own_k, own_v = k[case.context_tokens :], v[case.context_tokens :]
    out, lse = backend.forward(q, own_k, own_v, own, is_causal=True)
    if not case.context_tokens:
        grad_q, grad_k, grad_v = backend.backward(gradient, q, own_k, own_v, out, lse, own, is_causal=True)
        return out, grad_q, k[context], grad_k, v[context], grad_v
    block = Segments.block(case.lengths_tokens[0], case.context_tokens)
    other, other_lse = backend.forward(q[rows], k[context], v[context], block, is_causal=False)
    out[rows], lse[:, rows] = merge_blocks(out[rows], lse[:, rows], other, other_lse)
    grad_q, grad_k, grad_v = backend.backward(gradient, q, own_k, own_v, out, lse, own, is_causal=True)
    more_q, context_k, context_v = backend.backward(
        gradient[rows], q[rows], k[context], v[context], out[rows], lse[:, rows], block, is_causal=False
    )
    grad_q[rows] += more_q
    return out, grad_q, context_k, grad_k, context_v, grad_v


def run_masked(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Attend under one mask; output and gradients."""
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    q_1hqd, k_1gkd, v_1gkd = (x.transpose(0, 1).unsqueeze(0) for x in leaves)
    out_1hqd = functional.scaled_dot_product_attention(q_1hqd, k_1gkd, v_1gkd, attn_mask=mask, enable_gqa=True)
    out = out_1hqd[0].transpose(0, 1)
    return out.detach(), *torch.autograd.grad(out, leaves, gradient)


if __name__ == "__main__":
    main()
