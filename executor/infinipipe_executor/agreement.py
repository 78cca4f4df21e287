"""Agreement: before a step starts, all ranks make sure that they hold the same plan and the same batch, or stop.

The comparison has the same size on every rank whatever they hold, so it is safe as the first collective of a step.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from infinipipe_executor.errors import DataError, PlanError

DIGEST_BYTES = 32


def check_agreement(step: int, plan_digest: str | None, batch_digest: str, group: dist.ProcessGroup) -> bool:
    """Compare the digests of all ranks; has the same result on all of them.

    Args:
        step: Training step, for the message.
        plan_digest: SHA-256 of this rank's plan, in hexadecimal; None if the rank was told to end and has no plan.
        batch_digest: SHA-256 of this rank's batch, in hexadecimal.
        group: All ranks, over a backend that carries CPU tensors.

    Returns:
        Whether the step is to be run; False if any rank was told to end, whatever the ranks hold.

    Raises:
        DataError: If ranks hold different batches; names the ranks.
        PlanError: If ranks hold different plans; names the ranks.
    """
    held = bytes.fromhex((plan_digest or "00" * DIGEST_BYTES) + batch_digest) + bytes([plan_digest is None])
    mine = torch.frombuffer(bytearray(held), dtype=torch.uint8)
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    digests = [bytes(tensor.tolist()) for tensor in theirs]
    if any(digest[-1] for digest in digests):
        return False
    batches = difference([digest[DIGEST_BYTES:-1] for digest in digests])
    if batches:
        raise DataError(f"step {step}: the ranks read different batches: {batches}")
    plans = difference([digest[:DIGEST_BYTES] for digest in digests])
    if plans:
        raise PlanError(f"step {step}: the ranks hold different plans: {plans}")
    return True


def difference(digests: Sequence[bytes]) -> str:
    """Say which ranks hold what; empty when all hold the same."""
    ranks_by_digest: dict[bytes, list[int]] = {}
    for rank, digest in enumerate(digests):
        ranks_by_digest.setdefault(digest, []).append(rank)
    if len(ranks_by_digest) == 1:
        return ""
    return ", ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {digest.hex()[:12]}"
        for digest, ranks in ranks_by_digest.items()
    )
