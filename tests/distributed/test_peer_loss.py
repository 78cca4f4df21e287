"""What the others say when a rank is killed, or leaves out an instruction."""

import time

import pytest

from infinipipe_contract.schedule import InstructionKind
from support_executor.groups import ProcessGroup
from support_executor.plans import chunk, cut, make_batch, make_plan
from support_executor.ranks import run_step_while_one_dies
from support_executor.reference import TINY
from support_executor.skipping import run_step_with_a_skip

TIMEOUT_S = 5.0
"""A neighbour of the killed rank sees it at once; who waits for that neighbour, which lives on here, waits as long."""


@pytest.mark.parametrize(
    ("dp_size", "pp_size", "sp_size", "victim"), [(1, 2, 1, 1), (1, 1, 2, 0), (1, 4, 1, 2), (2, 1, 1, 0)]
)
def test_the_others_name_the_step_and_the_instruction_when_a_rank_is_killed(
    dp_size: int, pp_size: int, sp_size: int, victim: int
) -> None:
    batch = make_batch([12, 7])
    plan = make_plan([[*map(chunk, cut(0, 6, 6)), chunk(*cut(1, 7))]], pp_size, batch)
    args = (TINY, pp_size, sp_size, plan, batch, victim, TIMEOUT_S, dp_size)
    with ProcessGroup(dp_size * pp_size * sp_size) as group:
        start_s = time.monotonic()

        errors = group.run(run_step_while_one_dies, *args, lost_rank=victim)

        assert time.monotonic() - start_s < TIMEOUT_S + 10
    survivors = [rank for rank in range(dp_size * pp_size * sp_size) if rank != victim]
    for rank, error in zip(survivors, errors, strict=True):
        assert error.startswith(f"PeerLostError: rank {rank} lost another rank during step 0, "), error


def test_an_instruction_left_out_on_one_rank_is_named_by_the_rank_that_waits_for_it() -> None:
    batch = make_batch([12, 7])
    plan = make_plan([[*map(chunk, cut(0, 6, 6)), chunk(*cut(1, 7))]], 2, batch)
    skipped = (InstructionKind.SEND_ACTIVATION, 2)
    with ProcessGroup(2) as group:
        start_s = time.monotonic()

        sender, receiver = group.run(run_step_with_a_skip, TINY, plan, batch, 0, skipped, TIMEOUT_S)

        assert time.monotonic() - start_s < TIMEOUT_S + 10
    # Each rank says where it stands: what rank 1 receives is what rank 0, which waits further on, did not send.
    assert receiver.startswith(
        "PeerLostError: rank 1 lost another rank during step 0, receive activation of chunk 2 in pipeline 0: "
    )
    assert sender.startswith("PeerLostError: rank 0 lost another rank during step 0, receive gradient of chunk 0")
