"""Sizes and layouts that are refused."""

import dataclasses
from typing import Any

import pytest
import torch

from infinipipe_executor.errors import ConfigError, LayoutError
from infinipipe_executor.model.config import check_layout
from infinipipe_executor.model.stage import check_device
from support_executor.reference import TINY


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "model.layers is 0, it must be at least 1"),
        ({"kv_heads": 3}, "model.kv_heads is 3, it must divide model.heads, which is 4"),
        ({"head_dim": 7}, "model.head_dim is 7, it must be even"),
        ({"dropout": 1.0}, r"model.dropout is 1.0, it must be in \[0, 1\)"),
    ],
)
def test_refuses_sizes_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **change)


def test_query_heads_that_do_not_divide_are_refused_with_the_sizes_that_do() -> None:
    config = dataclasses.replace(TINY, heads=6, kv_heads=2)
    with pytest.raises(
        LayoutError, match=r"6 query heads cannot be divided among sp_size 4 ranks; sp_size may be 1, 2, 3, 6"
    ):
        check_layout(config, pp_size=1, sp_size=4)


def test_more_stages_than_layers_are_refused_with_the_sizes_that_work() -> None:
    check_layout(TINY, pp_size=3, sp_size=1)
    with pytest.raises(LayoutError, match=r"4 layers cannot be divided among pp_size 5 stages; pp_size may be 1 to 4"):
        check_layout(TINY, pp_size=5, sp_size=1)


@pytest.mark.parametrize("size", [0, -2])
def test_sizes_below_one_are_refused(size: int) -> None:
    with pytest.raises(LayoutError, match=f"pp_size {size} "):
        check_layout(TINY, size, 1)
    with pytest.raises(LayoutError, match=f"sp_size {size} "):
        check_layout(TINY, 1, size)


def test_fewer_key_heads_than_ranks_are_fine() -> None:
    check_layout(dataclasses.replace(TINY, heads=8, kv_heads=1), pp_size=4, sp_size=8)


def test_types_and_heads_that_attention_on_cuda_lacks_are_refused() -> None:
    wide = dataclasses.replace(TINY, head_dim=12)
    with pytest.raises(ConfigError, match="model.dtype is float32, on cuda it must be bfloat16 or float16"):
        check_device(TINY, "cuda", torch.float32)
    with pytest.raises(ConfigError, match="model.head_dim is 12, on cuda it must be a multiple of 8, at most 256"):
        check_device(wide, "cuda", torch.bfloat16)
    check_device(TINY, "cuda", torch.bfloat16)
    check_device(wide, "cpu", torch.float32)
