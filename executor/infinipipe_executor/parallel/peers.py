"""Telling the loss of another rank from a mistake of this one.

A backend reports a lost peer as a plain error of its transport, from whatever call happens to wait for it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from infinipipe_contract.errors import first_line
from infinipipe_executor.errors import PeerLostError

_TRANSPORT_ERROR = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed out|timeout|socket|gloo.*(read|write)error"
    r"|remote (process|peer)|nccl.*(remote|system) error|store.*(closed|failed)",
    re.IGNORECASE | re.DOTALL,
)


def is_peer_loss(error: BaseException) -> bool:
    """Tell whether an error says that another rank is gone or silent."""
    if isinstance(error, (dist.DistNetworkError, dist.DistBackendError)):
        return True
    return isinstance(error, RuntimeError) and _TRANSPORT_ERROR.search(str(error)) is not None


@contextmanager
def peers_watched(rank: int, what: str) -> Iterator[None]:
    """Turn the loss of a peer inside the block into one clear error; any other error is told what was going on.

    Args:
        rank: Rank of this process.
        what: What it was doing, for the message.

    Raises:
        PeerLostError: If another rank went away; its cause is the transport's error.
        Exception: What the block raised, with a note that names ``what``.
    """
    try:
        yield
    except Exception as error:
        if not is_peer_loss(error):
            error.add_note(f"during {what}")
            raise
        raise PeerLostError(f"rank {rank} lost another rank during {what}: {first_line(error)}") from error
