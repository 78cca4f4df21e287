"""CPU: settings that have to be made before the first large tensor."""

import os

import torch


def set_cpu_defaults() -> None:
    """Set what ranks on the CPU need, unless the user's environment says otherwise.

    - Ranks share the cores of their machine, so each of them computes with one thread.
    - Large tensors lie in large pages where the system gives them. The C library gives memory back as soon as a large
      tensor is freed, and the system fills the pages of the next one with zeros at their first touch: with small pages
      that takes longer than many operators need for their work.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
