"""Eq. 16: from the forward order to the backward order."""

from infinipipe_planner.scheduling.one_f_one_b import build_pipeline, order_pipeline
from support_planner.chunks import batched_chain, split_chain


def test_slices_of_a_sequence_run_backward_in_reverse_within_its_place_in_the_order() -> None:
    """f2b maps the forward execution order to the backward execution order. Reference: III-C3, Eq. 16.

    Forward: A0 A1 A2, B0 B1, C. Backward: A2 A1 A0, B1 B0, C.
    """
    order = order_pipeline([batched_chain((2, 4)), split_chain(1, 3, 3), split_chain(0, 3, 3, 3)], 2)

    assert order.backward_order == (2, 1, 0, 4, 3, 5)
    assert order.backward_rank == (2, 1, 0, 4, 3, 5)


def test_the_plan_recomputes_what_the_variable_of_the_diagonal_says() -> None:
    """``ckpt(p, k) = C[f2b[k] + d_p - p]``. Reference: III-C3, Eq. 16."""
    order = order_pipeline([split_chain(0, 3, 3, 3)], 2)

    pipeline = build_pipeline(order, (10, 11, 12, 13))

    of_chunk = [
        {action.chunk_index: action.recompute_layer_count for action in actions if action.kind.value == "F"}
        for actions in pipeline.stages
    ]
    assert of_chunk == [{0: 13, 1: 12, 2: 11}, {0: 12, 1: 11, 2: 10}]
