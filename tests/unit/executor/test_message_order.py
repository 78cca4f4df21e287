"""What a stage reads off the plan about its messages."""

from collections import Counter, defaultdict, deque

import pytest

from infinipipe_contract.plan import ChunkId, ExecutionPlan
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage
from infinipipe_executor.pipeline.message_order import arrived_before, receives_to_post
from support_executor.drawn import draw_plan
from support_executor.rendezvous import RECEIVES, SENDS

SEEDS = range(25)
PASSES = (InstructionKind.FORWARD, InstructionKind.BACKWARD)


@pytest.mark.parametrize("stage_count", [2, 3, 4])
def test_every_receive_is_posted_one_pass_early_and_no_two_at_a_time(stage_count: int) -> None:
    for seed in SEEDS:
        plan, _ = draw_plan(seed, stage_count)
        for stage in range(stage_count):
            instructions = lower_stage(plan, stage)
            posts = receives_to_post(instructions)

            receives = [index for index, instruction in enumerate(instructions) if instruction.kind in RECEIVES]
            early = [index for index in receives if any(one.kind in PASSES for one in instructions[:index])]
            assert len(receives) - len(early) <= 1, "only the first one has no pass in front of it"
            assert [instructions[index] for index in early] == list(posts.values())
            for post_index, index in zip(posts, early, strict=True):
                between = [one.kind for one in instructions[post_index:index]]
                assert sum(kind in PASSES for kind in between) == 1
                assert not any(kind in RECEIVES for kind in between)


@pytest.mark.parametrize("stage_count", [2, 3, 4])
def test_a_message_proves_what_its_sender_has_received_however_late_the_sender_is(stage_count: int) -> None:
    for seed in SEEDS:
        plan, _ = draw_plan(seed, stage_count)
        for stage in range(stage_count):
            assert arrived_before(plan, stage, 0) == _Lazy(plan).run(stage)


class _Lazy:
    """Plays one stage to its end; the others do no more than they must for it."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._todo = [deque(lower_stage(plan, stage)) for stage in range(plan.stage_count)]
        self._channels: dict[tuple[int, int], deque[ChunkId]] = defaultdict(deque)
        self._received: Counter[tuple[int, int]] = Counter()

    def run(self, stage: int) -> dict[Instruction, int]:
        """By each receive: how many messages of the stage its sender has received by then."""
        seen = {}
        while self._todo[stage]:
            instruction = self._go_on(stage)
            if instruction.kind in RECEIVES:
                sender = stage + RECEIVES[instruction.kind]
                seen[Instruction(instruction.kind, instruction.chunk_id)] = self._received[stage, sender]
        return seen

    def _go_on(self, stage: int) -> Instruction:
        instruction = self._todo[stage].popleft()
        if instruction.kind in SENDS:
            self._channels[stage, stage + SENDS[instruction.kind]].append(instruction.chunk_id)
        elif instruction.kind in RECEIVES:
            sender = stage + RECEIVES[instruction.kind]
            while not self._channels[sender, stage]:
                self._go_on(sender)
            assert self._channels[sender, stage].popleft() == instruction.chunk_id
            self._received[sender, stage] += 1
        return instruction
