"""Settings of the CPU, seen by how often a process of its own has the system fill a page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import resource, sys
import torch
from infinipipe_executor.cpu_defaults import set_cpu_defaults
if sys.argv[1] == "with":
    set_cpu_defaults()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones(2**24)  # 64 MiB: 16,384 pages of 4 KiB, 32 of 2 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fault_count(defaults: str, **environment: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, defaults],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        # A test in this process may have set the default before.
        env={**{name: text for name, text in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}, **environment},
    )
    return int(result.stdout)


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(),
    reason="the system gives no large pages to those who ask for them",
)
def test_large_tensors_lie_in_large_pages_unless_the_environment_says_otherwise() -> None:
    assert 4 * fault_count("with") < fault_count("without")
    assert 4 * fault_count("with") < fault_count("with", THP_MEM_ALLOC_ENABLE="0")
