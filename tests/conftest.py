"""Shared by all tests: one seed, and no network beyond loopback."""

import os
import random
from collections.abc import Iterator

import pytest

# Set before any test module imports torch, ray or grpc: several processes share few cores, and nothing leaves loopback.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("no_proxy", "*")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Start every test from the same state of Python's generator."""
    random.seed(0)
    yield
