"""The all-to-all between shares of tokens and shares of heads."""

import pytest

from support_executor.groups import GroupPool
from support_executor.ranks import exchange_round_trip


@pytest.mark.parametrize(("ranks", "heads", "kv_heads"), [(2, 4, 2), (3, 6, 2), (4, 8, 2), (4, 4, 1), (4, 12, 3)])
def test_no_token_and_no_head_is_lost_at_any_length(groups: GroupPool, ranks: int, heads: int, kv_heads: int) -> None:
    groups.run(ranks, exchange_round_trip, list(range(1, 34)), heads, kv_heads)
