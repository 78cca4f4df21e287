"""What the plan tells a stage about its messages: which receive to start early, and which sends have arrived.

Pure; read off the instructions of the stage and of its neighbours.
"""

from collections.abc import Sequence

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage

_COMPUTES = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
_RECEIVES = (InstructionKind.RECEIVE_ACTIVATION, InstructionKind.RECEIVE_GRADIENT)


def receives_to_post(instructions: Sequence[Instruction]) -> dict[int, Instruction]:
    """Find the receives that can start one pass early: each before the pass in front of it.

    One pass hides a message that takes less time than a pass, and costs the memory of a single message at a time. To
    start earlier would hold more of them, and on CUDA keep cores of the device busy with waiting.

    Args:
        instructions: Of one stage.

    Returns:
        By index of a pass, the receive to post before it runs. The first receive of a step has no pass in front of it.
    """
    posts: dict[int, Instruction] = {}
    last_pass: int | None = None
    for index, instruction in enumerate(instructions):
        if instruction.kind in _COMPUTES:
            last_pass = index
        elif instruction.kind in _RECEIVES and last_pass is not None:
            posts[last_pass] = instruction
    return posts


def arrived_before(plan: ExecutionPlan, stage_index: int, replica_index: int) -> dict[Instruction, int]:
    """Count what a message from a neighbour proves: the neighbour has received all that its plan has before it.

    The proof needs no acknowledgement, but a message: one without rows proves nothing.

    Args:
        plan: A valid plan.
        stage_index: The stage that wants to know.
        replica_index: Its replica.

    Returns:
        By each receive of the stage: messages of the stage to the same neighbour that have then arrived, those without
        rows included.
    """
    counts: dict[Instruction, int] = {}
    for neighbour, towards, back, own in (
        (stage_index + 1, InstructionKind.RECEIVE_ACTIVATION, InstructionKind.SEND_GRADIENT, _RECEIVES[1]),
        (stage_index - 1, InstructionKind.RECEIVE_GRADIENT, InstructionKind.SEND_ACTIVATION, _RECEIVES[0]),
    ):
        if not 0 <= neighbour < plan.stage_count:
            continue
        received_count = 0
        for instruction in lower_stage(plan, neighbour, replica_index):
            if instruction.kind is towards:
                received_count += 1
            elif instruction.kind is back:
                counts[Instruction(own, instruction.chunk_id)] = received_count
    return counts
