"""What a stage holds while a step runs: layouts, slice caches, chunks between their passes, messages."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from infinipipe_contract.plan import ChunkId, ExecutionPlan, Pipeline, slices_by_sequence
from infinipipe_contract.schedule import Instruction
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.parallel.channels import PostedReceive
from infinipipe_executor.pipeline.chunk_layout import ChunkLayout, lay_out_pipeline
from infinipipe_executor.pipeline.slice_cache import SliceCache
from infinipipe_executor.pipeline.stopwatch import Stopwatch


class InFlight(NamedTuple):
    """A chunk between its forward and its backward pass.

    Attributes:
        x: Input of the stage; its gradient is what goes to the previous stage.
        output: Where the backward pass starts. Not the output itself: that is gone once it is sent.
    """

    x: Tensor
    output: GradientEdge


@dataclass
class StepState:
    """One step on one stage.

    Attributes:
        plan: The plan.
        batch: The sequences.
        stopwatch: Runs since the start of the step.
        loss: This rank's part of the loss so far: of the whole one, and of the z-loss in it; ``[2]``.
        layouts: Layout of every chunk of this replica.
        caches: Slice cache of every sequence with several slices.
        in_flight: Chunks between their passes.
        messages: Tensors received and not yet used, or made and not yet sent, by chunk.
        posted: Receives that were started ahead of their turn.
        arrived_before: By each receive, messages to the same neighbour that have arrived when it is done.
        backwards_left: Backward passes of the stage that are still to run.
    """

    plan: ExecutionPlan
    batch: Batch
    stopwatch: Stopwatch
    loss: Tensor
    layouts: dict[ChunkId, ChunkLayout]
    caches: dict[int, SliceCache]
    in_flight: dict[ChunkId, InFlight] = field(default_factory=dict)
    messages: dict[ChunkId, Tensor] = field(default_factory=dict)
    posted: dict[Instruction, PostedReceive] = field(default_factory=dict)
    arrived_before: dict[Instruction, int] = field(default_factory=dict)
    backwards_left: int = 0


def begin_step(plan: ExecutionPlan, batch: Batch, mesh: Mesh, layer_count: int) -> StepState:
    """Lay out all chunks that this rank's replica runs.

    Args:
        plan: The plan.
        batch: The sequences.
        mesh: Where this rank stands.
        layer_count: Layers of the stage.
    """
    stopwatch = Stopwatch(mesh.device)  # first: it counts from the common start of the step
    layouts, caches = {}, {}
    for pipeline_index, pipeline in enumerate(plan.pipelines):
        if pipeline.replica_index != mesh.dp_rank:
            continue
        for chunk_index, layout in enumerate(lay_out_pipeline(pipeline, mesh.sp_size, mesh.sp_rank)):
            layouts[ChunkId(pipeline_index, chunk_index)] = layout
        caches.update(_open_caches(pipeline, layer_count))
    return StepState(
        plan=plan,
        batch=batch,
        stopwatch=stopwatch,
        loss=torch.zeros(2, dtype=torch.float64, device=mesh.device),
        layouts=layouts,
        caches=caches,
    )


def _open_caches(pipeline: Pipeline, layer_count: int) -> dict[int, SliceCache]:
    return {
        sequence: SliceCache(layer_count, len(pieces))
        for sequence, pieces in slices_by_sequence(pipeline.chunks).items()
        if len(pieces) > 1
    }
