"""Messages follow from the actions, in the same order on both ends of every edge."""

import itertools

import pytest

from infinipipe_contract.plan import Slice
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage, share_tokens
from support_contract import build_plan, picture_pipeline, small_profile, two_stage_plan


def words(instructions: list[Instruction]) -> str:
    return " ".join(f"{kind.value}{chunk_id.chunk_index}" for kind, chunk_id, _ in instructions)


def test_a_stage_receives_before_and_sends_after_it_computes() -> None:
    _, _, plan = two_stage_plan()
    assert words(lower_stage(plan, 0)) == "F0 SA0 F1 SA1 F2 SA2 RG1 B1 RG0 B0 RG2 B2"
    assert words(lower_stage(plan, 1)) == "RA0 F0 RA1 F1 B1 SG1 RA2 F2 B0 SG0 B2 SG2"


def test_a_single_stage_sends_nothing() -> None:
    profile = small_profile(pp_size=1)
    plan = build_plan(profile, [2], picture_pipeline([[Slice(0, 0, 2)]], "F0 B0"))
    assert words(lower_stage(plan, 0)) == "F0 B0"


def test_each_edge_carries_one_message_a_chunk_in_the_same_order_on_both_ends() -> None:
    profile = small_profile(pp_size=4)
    stages = ["F0 F1 B1 B0", "F0 F1 B1 B0", "F0 F1 B1 B0", "F0 F1 B1 B0"]
    chunks = [[Slice(0, 0, 8)], [Slice(0, 8, 4)]]
    plan = build_plan(
        profile, [12, 3], picture_pipeline(chunks, *stages), picture_pipeline([[Slice(1, 0, 3)]], *["F0 B0"] * 4)
    )
    lowered = [lower_stage(plan, stage_index) for stage_index in range(4)]
    for left, right in itertools.pairwise(lowered):
        for send, receive, sender, receiver in (
            (InstructionKind.SEND_ACTIVATION, InstructionKind.RECEIVE_ACTIVATION, left, right),
            (InstructionKind.SEND_GRADIENT, InstructionKind.RECEIVE_GRADIENT, right, left),
        ):
            sent = [i.chunk_id for i in sender if i.kind is send]
            assert sent == [i.chunk_id for i in receiver if i.kind is receive]
            assert len(sent) == len(set(sent)) == plan.chunk_count


@pytest.mark.parametrize("sp_size", [1, 2, 3, 4, 8])
def test_shares_lose_no_token_and_differ_by_one_at_most(sp_size: int) -> None:
    for token_count in range(34):
        shares = share_tokens(token_count, sp_size)
        assert len(shares) == sp_size
        assert sum(shares) == token_count
        assert max(shares) - min(shares) <= 1
