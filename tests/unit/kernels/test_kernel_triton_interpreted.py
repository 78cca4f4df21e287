"""The Triton kernels compute what the references compute, without a GPU."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("test_kernel_triton.py")


@pytest.mark.timeout(300)  # seconds on a quiet machine; a busy one starts the second process slowly
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_equal_the_references_in_tritons_interpreter() -> None:
    # Triton reads the variable when it is imported, which this process may have done already.
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    last_line = ran.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ passed in .*", last_line), ran.stdout
