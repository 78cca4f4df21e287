"""Gated activation of the feed-forward layer."""

from infinipipe_kernels.swiglu.function import swiglu

__all__ = ["swiglu"]
