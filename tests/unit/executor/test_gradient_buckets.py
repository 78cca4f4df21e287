"""How gradients are put together for the sum over replicas."""

import torch

from infinipipe_executor.parallel.replicas import fill_buckets


def sizes(limit_bytes: int, *counts: int, dtypes: tuple[torch.dtype, ...] = ()) -> list[list[int]]:
    """Elements of the tensors of every bucket; fp32 where no type is named."""
    tensors = [
        torch.zeros(count, dtype=dtypes[index] if dtypes else torch.float32) for index, count in enumerate(counts)
    ]
    return [[tensor.numel() for tensor in bucket] for bucket in fill_buckets(tensors, limit_bytes)]


def test_a_bucket_takes_gradients_in_order_up_to_its_limit() -> None:
    assert sizes(40, 4, 6, 1, 9, 2) == [[4, 6], [1, 9], [2]]


def test_a_gradient_larger_than_the_limit_goes_alone() -> None:
    assert sizes(40, 3, 50, 2, 2) == [[3], [50], [2, 2]]


def test_a_shard_without_elements_is_in_no_bucket() -> None:
    assert sizes(40, 0, 3, 0, 2) == [[3, 2]]
    assert sizes(40, 0) == []


def test_gradients_of_two_types_share_no_bucket() -> None:
    assert sizes(40, 2, 2, 2, dtypes=(torch.float32, torch.float64, torch.float64)) == [[2], [2, 2]]
