"""The launcher of a rank: a rank does not outlive the torchrun that started it.

torchrun ends its ranks when it is told to end; one that is killed cannot, and its ranks would hold on to their devices.
Entry point: ``end_with_launcher``.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Let the kernel send SIGTERM to this process when torchrun dies (Linux only; elsewhere nothing is done).

    A rank that was started by hand goes on when its shell ends, as any process does.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    launcher = os.getppid()
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != launcher:  # it died before the kernel was told
        os.kill(os.getpid(), signal.SIGTERM)
