"""Eq. 15: recompute is shared along diagonals."""

from infinipipe_planner.scheduling.one_f_one_b import recompute_variable


def test_a_backward_shares_its_variable_with_the_next_backward_of_the_next_stage() -> None:
    """``ckpt'(p, k) = ckpt'(p + i, k + i) = C[k + d_p - p]``. Reference: III-C3, Eq. 15."""
    for stage_index in range(3):
        for rank in range(5):
            assert recompute_variable(4, stage_index, rank) == recompute_variable(4, stage_index + 1, rank + 1)


def test_there_are_as_many_variables_as_chunks_and_further_stages() -> None:
    """C is a set containing ``d_p - 1 + n`` independent variables. Reference: III-C3."""
    chunk_count, pp_size = 5, 4

    indices = {recompute_variable(pp_size, p, k) for p in range(pp_size) for k in range(chunk_count)}

    assert indices == set(range(chunk_count + pp_size - 1))
