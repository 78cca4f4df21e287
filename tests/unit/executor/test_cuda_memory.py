"""What is set for CUDA's allocator before the device is used, and what a run says about its memory."""

import os

import pytest
import torch

from infinipipe_executor.cuda_memory import describe_memory, set_cuda_defaults


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment of the test's own, which says nothing about CUDA."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS")
    monkeypatch.setattr(os, "environ", {key: value for key, value in os.environ.items() if key not in names})
    return monkeypatch


@pytest.mark.usefixtures("environment")
def test_segments_of_the_allocator_can_grow_because_chunks_have_ever_new_sizes() -> None:
    set_cuda_defaults()

    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_the_user_set_for_the_allocator_stays(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setitem(os.environ, name, "max_split_size_mb:64")

    set_cuda_defaults()

    assert {key: value for key, value in os.environ.items() if key.endswith("ALLOC_CONF")} == {
        name: "max_split_size_mb:64"
    }


def test_a_run_tells_what_is_reserved_beside_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 2**32)

    assert describe_memory(torch.device("cuda")) == "device memory at most: 3.00 GiB in use, 4.00 GiB reserved"
