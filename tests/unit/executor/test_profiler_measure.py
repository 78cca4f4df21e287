"""The profile measured by real ranks is one that the planner takes, and the same on every rank."""

from pathlib import Path

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import Chunk, Slice
from infinipipe_contract.profile import check_profile
from infinipipe_executor.links import NO_LINK
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan
from support_e2e.trainer_ranks import measure
from support_executor.groups import ProcessGroup

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), [(1, 2, 1), (1, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_all_ranks_agree_on_a_profile_that_plans_can_be_made_with(
    tmp_path: Path, dp_size: int, pp_size: int, sp_size: int
) -> None:
    with ProcessGroup(dp_size * pp_size * sp_size) as group:
        measured = group.run(measure, tmp_path, pp_size, sp_size, dp_size)

    profile = measured[0]
    assert all(other == profile for other in measured)
    check_profile(profile)
    assert profile.cluster.device_memory_bytes == 2**20
    assert (profile.cluster.dp_size, profile.cluster.pp_size, profile.cluster.sp_size) == (dp_size, pp_size, sp_size)
    assert (profile.p2p == NO_LINK) == (pp_size == 1)
    assert (profile.all2all == NO_LINK) == (sp_size == 1)
    costs, chunk = CostModel(profile), Chunk((Slice(0, 0, 64),))
    assert costs.forward_s(chunk, 0) > 0
    assert costs.backward_s(chunk, 0, 0) > 0
    assert profile.head.forward_s_per_token > 0
    assert profile.head.backward_s_per_token > 0
    assert profile.layer_division == profile.stage_layers
    assert solve_plan([100, 20, 3], profile, PlanOptions()).estimate.makespan_s > 0
