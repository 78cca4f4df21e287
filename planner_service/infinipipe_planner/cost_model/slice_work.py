"""Work of a slice: the part of its time that grows with the slice (paper, Eqs. 1, 3 and 4).

Chunking balances this number. The fixed seconds of a chunk (beta1, latencies) are left out: they are the same for
every chunk, and packing more slices into a chunk does not pay them again.
"""

import math
from collections.abc import Collection

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind
from infinipipe_contract.profile import Profile


class SliceWork:
    """Work of slices under one profile, in seconds of a mean stage: every stage has its share of the head.

    Args:
        profile: Cost model.
        kinds: The passes that count; the paper balances backward passes.
    """

    def __init__(self, profile: Profile, kinds: Collection[ActionKind] = (ActionKind.BACKWARD,)) -> None:
        costs, pp_size = CostModel(profile), profile.cluster.pp_size
        passes = [profile.forward if kind is ActionKind.FORWARD else profile.backward for kind in kinds]
        all2all_s = costs.all2all_s(1) - costs.all2all_s(0)
        self._per_pair_s = sum(one.alpha1 for one in passes) / profile.device_count
        self._per_token_s = sum(one.alpha2 / profile.device_count + all2all_s for one in passes)
        self._per_token_s += sum(costs.head_s(kind, 1, pp_size - 1) for kind in kinds) / pp_size

    def work_s(self, start_token: int, length_tokens: int) -> float:
        """Work of the slice that begins behind ``start_token`` tokens of context."""
        return self.prefix_work_s(start_token + length_tokens) - self.prefix_work_s(start_token)

    def prefix_work_s(self, end_token: float) -> float:
        """Work of the first ``end_token`` tokens of a sequence."""
        return (self._per_pair_s * end_token + self._per_token_s) * end_token

    def prefix_tokens(self, work_s: float) -> float:
        """Tokens whose prefix has that work: the inverse of ``prefix_work_s``.

        Written without a difference of near-equal numbers, so that it also holds where attention costs nothing.
        """
        if work_s <= 0:
            return 0.0
        root = math.sqrt(self._per_token_s**2 + 4 * self._per_pair_s * work_s)
        return 2 * work_s / (self._per_token_s + root)
