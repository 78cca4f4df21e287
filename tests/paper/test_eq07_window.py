"""Eq. 7: the window of chunks in flight."""

import pytest

from infinipipe_planner.scheduling.one_f_one_b import chunk_windows, order_pipeline
from infinipipe_planner.scheduling.window import window_size
from support_planner.chunks import batched_chain, split_chain


@pytest.mark.parametrize("split_count", [1, 2, 4])
@pytest.mark.parametrize("pp_size", [1, 2, 4])
def test_every_stage_keeps_a_constant_number_of_chunks_in_flight(pp_size: int, split_count: int) -> None:
    """``|W_p(t)| = d_p - p + N_split``: each stage maintains a constant number of chunks in the steady phase.

    Reference: III-A3, Eq. 7, with p = stage_index + 1.
    """
    chains = [split_chain(0, *(3,) * split_count), *(batched_chain((index, 2)) for index in range(1, 12))]

    order = order_pipeline(chains, pp_size)

    for stage_index, passes in enumerate(order.stages):
        sizes = {len(window) for window in chunk_windows(passes)}
        assert sizes == {pp_size - (stage_index + 1) + split_count} == {window_size(pp_size, stage_index, split_count)}


def test_the_window_equals_the_number_of_chunks_in_warm_up() -> None:
    """The window is equivalent to the number of micro-batches in the warm-up phase. Reference: III-A3."""
    order = order_pipeline([split_chain(0, 3, 2), *(batched_chain((index, 1)) for index in range(1, 9))], 3)

    warmups = [next(at for at, (kind, _) in enumerate(passes) if kind.value == "B") for passes in order.stages]

    assert warmups == [4, 3, 2]
