"""Uninitialised memory holds NaN, so that an operator that forgets to write a part of its output is seen."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
