"""Loss of the next token."""

from infinipipe_kernels.cross_entropy.function import cross_entropy_

__all__ = ["cross_entropy_"]
