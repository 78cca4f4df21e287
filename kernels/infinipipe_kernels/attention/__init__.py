"""Attention in blocks, merged by log-sum-exp."""

from infinipipe_kernels.attention.backend import AttentionBackend, Segments, backend_for
from infinipipe_kernels.attention.merge import merge_blocks

__all__ = ["AttentionBackend", "Segments", "backend_for", "merge_blocks"]
