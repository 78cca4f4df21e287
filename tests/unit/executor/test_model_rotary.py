"""Positions within the sequence."""

import dataclasses

import pytest
import torch

from infinipipe_executor.model.rotary import rotary_table, rotate
from support_executor.closeness import relative_error
from support_executor.plans import chunk, cut, make_batch
from support_executor.reference import TINY
from support_executor.single import forward_rows, plain_stage


@pytest.mark.parametrize("tokens", range(1, 40))
def test_a_sequence_cut_anywhere_gives_the_same_activations(tokens: int) -> None:
    batch, stage = make_batch([40, 3]), plain_stage(TINY, 2, 0)
    first, second = cut(0, tokens, 40 - tokens)

    rows = forward_rows(stage, [chunk(*cut(1, 3), first), chunk(second)], batch)

    whole = forward_rows(stage, [chunk(*cut(0, 40)), chunk(*cut(1, 3))], batch)
    assert relative_error(rows[0], whole[0]) <= 1e-13
    assert relative_error(rows[1], whole[1]) <= 1e-13


def test_scores_depend_on_the_distance_only() -> None:
    config = dataclasses.replace(TINY, head_dim=16)
    q, k = (torch.randn(1, 1, 16, dtype=torch.float64) for _ in range(2))

    def score(q_position: int, k_position: int) -> float:
        turned_q = rotate(q, rotary_table(torch.tensor([q_position]), config, torch.float64))
        turned_k = rotate(k, rotary_table(torch.tensor([k_position]), config, torch.float64))
        return float((turned_q * turned_k).sum())

    assert score(100_007, 100_000) == pytest.approx(score(7, 0), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_neighbouring_positions_far_out_differ_whatever_the_activations_are(dtype: torch.dtype) -> None:
    table = rotary_table(torch.tensor([1_000_000, 1_000_001]), TINY, dtype)
    exact = torch.tensor([1_000_000.0, 1_000_001.0], dtype=torch.float64).cos()

    assert table.cos.dtype == torch.float32
    assert (table.cos[:, 0, 0].double() - exact).abs().max() <= 1e-6


def test_the_gradient_is_the_rotation_back() -> None:
    table = rotary_table(torch.arange(5), TINY, torch.float64)
    x = torch.randn(5, 2, TINY.head_dim, dtype=torch.float64, requires_grad=True)

    torch.autograd.backward(rotate(x, table), rotate(x.detach(), table))

    assert x.grad is not None
    assert relative_error(x.grad, x.detach()) <= 1e-14
