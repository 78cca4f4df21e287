"""Process groups that know how long to wait."""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist


def open_group(ranks: Sequence[int], timeout_s: float, backend: str | None = None) -> dist.ProcessGroup | None:
    """Create a group; every rank of the job calls this for every group, in the same order.

    Args:
        ranks: Global ranks of the members.
        timeout_s: Seconds after which a member that does not answer counts as lost; a group does not inherit the
            timeout of the job.
        backend: Backend of the group; None for that of the job.

    Returns:
        The group, or None on a rank that is no member.
    """
    group = dist.new_group(list(ranks), timedelta(seconds=timeout_s), backend)
    return group if isinstance(group, dist.ProcessGroup) else None
