"""Groups of processes, shared by all tests of this folder and gone behind the last of them."""

from pathlib import Path

import pytest

from support_executor.groups import GroupPool

_pool = GroupPool()


@pytest.fixture
def groups() -> GroupPool:
    return _pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if _is_here(item):
            item.add_marker(pytest.mark.distributed)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End all processes behind the last test of this folder."""
    if nextitem is None or not _is_here(nextitem):
        _pool.close()


def _is_here(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents
