"""The first exchange over every connection, before anything is measured or trained."""

from itertools import combinations

import pytest

from support_executor.groups import GroupPool, ProcessGroup
from support_executor.message_ranks import warm_up_and_list, warm_up_but_one


def test_a_rank_opens_every_connection_once_edges_first(groups: GroupPool) -> None:
    lists = groups.run(4, warm_up_and_list, 1, 2, 2)

    assert lists[0][0] == [
        "the channel from rank 0 to rank 2",
        "the channel from rank 2 to rank 0",
        "the group for the all-to-alls of ranks 0, 1",
        "the group for the parameters of ranks 0, 1",
        "the group for the tied embedding of ranks 0, 2",
        "the group for the loss of ranks 0, 1, 2, 3",
    ]
    assert [exchange_count for _, exchange_count in lists] == [len(names) for names, _ in lists]


@pytest.mark.parametrize(("dp_size", "pp_size", "sp_size"), [(1, 4, 1), (1, 2, 2), (2, 2, 1), (2, 1, 2)])
def test_any_two_ranks_open_what_they_share_in_the_same_order(
    groups: GroupPool, dp_size: int, pp_size: int, sp_size: int
) -> None:
    lists = [names for names, _ in groups.run(4, warm_up_and_list, dp_size, pp_size, sp_size)]

    for one, other in combinations(lists, 2):
        shared = set(one) & set(other)
        assert shared
        assert [name for name in one if name in shared] == [name for name in other if name in shared]
    edges = {name for names in lists for name in names if "channel" in name}
    assert len(edges) == 2 * dp_size * (pp_size - 1) * sp_size


def test_a_rank_that_does_not_answer_is_told_by_the_connection_to_it() -> None:
    with ProcessGroup(3) as group:
        errors = group.run(warm_up_but_one, 3, 2, 2.0)

    lost = "rank {} lost another rank during the first exchange over {}"
    assert errors[1].startswith(lost.format(1, "the channel from rank 1 to rank 2")), errors[1]
    assert errors[0].startswith(lost.format(0, "")), errors[0]
