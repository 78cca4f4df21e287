"""Root-mean-square normalisation."""

from infinipipe_kernels.rms_norm.function import rms_norm

__all__ = ["rms_norm"]
