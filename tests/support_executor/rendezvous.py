"""Plays the instructions of all stages over channels without any buffer, in one process and without numbers.

A message moves only when its receiver waits for it; channels keep their order. What a stage does meanwhile is the
choice of the test: go on, as the runner does, or stand still until its message has moved.
"""

from collections import deque
from dataclasses import dataclass, field

from infinipipe_contract.plan import ChunkId, ExecutionPlan
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage

SENDS = {InstructionKind.SEND_ACTIVATION: 1, InstructionKind.SEND_GRADIENT: -1}
RECEIVES = {InstructionKind.RECEIVE_ACTIVATION: -1, InstructionKind.RECEIVE_GRADIENT: 1}


@dataclass
class _Stage:
    todo: deque[Instruction]
    is_sending: bool = False


@dataclass
class Play:
    """What came of it.

    Attributes:
        waiting: What each stage that never came to its end waits in; empty if all did.
        unpaired: Messages that met a receiver of another chunk, or none at all.
        longest_queue: Most messages that a channel held back at a time.
    """

    waiting: dict[int, Instruction]
    unpaired: list[tuple[ChunkId, ChunkId | None]] = field(default_factory=list)
    longest_queue: int = 0


def play(plan: ExecutionPlan, *, sends_block: bool) -> Play:
    """Run all stages until none can go on.

    Args:
        plan: Any plan.
        sends_block: Whether a stage stands still until its message has moved.
    """
    stages = [_Stage(deque(lower_stage(plan, stage))) for stage in range(plan.stage_count)]
    channels: dict[tuple[int, int], deque[ChunkId]] = {}
    result = Play({})
    went_on = True
    while went_on:
        went_on = False
        for index, stage in enumerate(stages):
            while stage.todo and not stage.is_sending and _can_run(index, stage.todo[0], channels):
                _run(index, stages, channels, result, sends_block=sends_block)
                went_on = True
    result.waiting = {index: stage.todo[0] for index, stage in enumerate(stages) if stage.todo}
    if not result.waiting:
        result.unpaired += [(chunk_id, None) for queue in channels.values() for chunk_id in queue]
    return result


def _can_run(index: int, instruction: Instruction, channels: dict[tuple[int, int], deque[ChunkId]]) -> bool:
    step = RECEIVES.get(instruction.kind)
    return step is None or bool(channels.get((index + step, index)))


def _run(
    index: int,
    stages: list[_Stage],
    channels: dict[tuple[int, int], deque[ChunkId]],
    result: Play,
    *,
    sends_block: bool,
) -> None:
    stage = stages[index]
    instruction = stage.todo[0]
    if instruction.kind in SENDS:
        queue = channels.setdefault((index, index + SENDS[instruction.kind]), deque())
        queue.append(instruction.chunk_id)
        result.longest_queue = max(result.longest_queue, len(queue))
        stage.is_sending = sends_block
        if sends_block:
            return  # the receiver takes the instruction off the list
    elif instruction.kind in RECEIVES:
        sender_index = index + RECEIVES[instruction.kind]
        sent = channels[sender_index, index].popleft()
        if sent != instruction.chunk_id:
            result.unpaired.append((sent, instruction.chunk_id))
        sender = stages[sender_index]
        if sends_block:
            sender.is_sending = False
            sender.todo.popleft()
    stage.todo.popleft()
