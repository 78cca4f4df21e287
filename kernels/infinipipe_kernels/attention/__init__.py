"""Attention in blocks, merged by log-sum-exp."""

from infinipipe_kernels.attention.backend import AttentionBackend, Segments
from infinipipe_kernels.attention.choice import backend_for, choose_backend
from infinipipe_kernels.attention.merge import merge_blocks

__all__ = ["AttentionBackend", "Segments", "backend_for", "choose_backend", "merge_blocks"]
