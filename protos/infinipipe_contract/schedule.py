"""Lowering: from a stage's compute actions to the list of instructions that the runner walks.

Messages are derived here and nowhere else, so nobody exchanges shapes at run time. Every directed edge between
neighbouring stages is a channel of its own; all stages run forwards in one order and backwards in one order, so the
messages of a channel pair up in order by construction.

    stage 0:  F0            SA0  F1  SA1  RG0  B0
    stage 1:       RA0  F0  B0   SG0 ...
"""

import enum
from typing import NamedTuple

from infinipipe_contract.plan import ActionKind, ChunkId, ExecutionPlan


class InstructionKind(enum.Enum):
    """What the runner does; the value is its letters in text."""

    RECEIVE_ACTIVATION = "RA"
    FORWARD = "F"
    SEND_ACTIVATION = "SA"
    RECEIVE_GRADIENT = "RG"
    BACKWARD = "B"
    SEND_GRADIENT = "SG"


class Instruction(NamedTuple):
    """One thing the runner does.

    Attributes:
        kind: What it does.
        chunk_id: With which chunk; a message carries one row per token of it.
        recompute_layer_count: On FORWARD: layers of the stage to recompute in the backward pass.
    """

    kind: InstructionKind
    chunk_id: ChunkId
    recompute_layer_count: int = 0


def lower_stage(plan: ExecutionPlan, stage_index: int, replica_index: int = 0) -> list[Instruction]:
    """List what one stage of one replica does in a step, over all its pipelines, messages included.

    Chunks keep the index of their pipeline in the plan. The list is empty for a replica that has no pipeline.
    """
    is_first, is_last = stage_index == 0, stage_index == plan.stage_count - 1
    instructions = []
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        if pipeline.replica_index != replica_index:
            continue
        for action in pipeline.stages[stage_index]:
            chunk_id = ChunkId(pipeline_index, action.chunk_index)
            if action.kind is ActionKind.FORWARD:
                if not is_first:
                    instructions.append(Instruction(InstructionKind.RECEIVE_ACTIVATION, chunk_id))
                instructions.append(Instruction(InstructionKind.FORWARD, chunk_id, action.recompute_layer_count))
                if not is_last:
                    instructions.append(Instruction(InstructionKind.SEND_ACTIVATION, chunk_id))
            else:
                if not is_last:
                    instructions.append(Instruction(InstructionKind.RECEIVE_GRADIENT, chunk_id))
                instructions.append(Instruction(InstructionKind.BACKWARD, chunk_id))
                if not is_first:
                    instructions.append(Instruction(InstructionKind.SEND_GRADIENT, chunk_id))
    return instructions


def share_tokens(token_count: int, sp_size: int) -> list[int]:
    """Divide a chunk's tokens among the ranks of a stage: contiguous shares that differ by one at most.

    Returns:
        Tokens of every rank in order; a share is 0 where there are fewer tokens than ranks.
    """
    base, extra = divmod(token_count, sp_size)
    return [base + (rank < extra) for rank in range(sp_size)]
