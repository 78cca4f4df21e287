"""Plain SwiGLU."""

from torch import Tensor
from torch.nn import functional

from infinipipe_kernels.checks import statistics_dtype


def swiglu_reference(gate_tf: Tensor, up_tf: Tensor) -> Tensor:
    """Multiply ``silu(gate)`` with ``up``, in at least fp32."""
    wide = statistics_dtype(gate_tf.dtype)
    return (functional.silu(gate_tf.to(wide)) * up_tf.to(wide)).to(gate_tf.dtype)
