"""Eq. 8: peak memory of a stage."""

import pytest

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.simulate import simulate
from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, chunk_windows, order_pipeline
from support_planner.chunks import batched_chain, split_chain
from support_planner.profiles import round_profile


def test_the_peak_is_the_heaviest_window_on_top_of_the_model_states() -> None:
    """``M_tot(p, t) = M_ms(p) + sum of M_act(p, S_k) over W_p(t)``; the peak occurs in the steady phase.

    Reference: III-A3, Eq. 8. Chunks 0 and 1 are kept for chunk 2.
    """
    profile = round_profile()
    order = order_pipeline([split_chain(0, 5, 4, 3), *(batched_chain((index, 7 - index)) for index in range(1, 6))], 2)

    timeline = simulate([build_pipeline(order, (0,) * 9)], profile)

    costs = CostModel(profile)
    for stage_index, passes in enumerate(order.stages):
        heaviest = max(
            sum(
                costs.full_activation_bytes(order.chunks[k].token_count, stage_index, keeps_kv=k in (0, 1))
                for k in window
            )
            for window in chunk_windows(passes)
        )
        assert timeline.stages[stage_index].peak_bytes == pytest.approx(1000 + heaviest)
