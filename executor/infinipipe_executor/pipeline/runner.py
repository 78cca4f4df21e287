"""Runs one training step on one stage: walks the instructions of the plan, one small method for each kind.

The runner decides nothing. Afterwards the gradients of the whole batch lie in the parameters, summed over chunks,
ranks and replicas and divided by the number of targets once. An evaluation walks the forward half of the same list.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from infinipipe_contract.plan import ActionKind, ChunkId, ExecutionPlan
from infinipipe_contract.schedule import Instruction, InstructionKind, lower_stage
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.rotary import rotary_table
from infinipipe_executor.model.stage import Stage, gather_ahead, reduce_in_next_backward
from infinipipe_executor.parallel.channels import Channel, PostedReceive
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.parallel.replicas import sum_over_replicas
from infinipipe_executor.parallel.tied import sum_tied_gradients
from infinipipe_executor.parallel.ulysses import HeadExchange
from infinipipe_executor.pipeline.chunk_pass import ChunkPass
from infinipipe_executor.pipeline.message_order import arrived_before, receives_to_post
from infinipipe_executor.pipeline.peak_memory import PeakMemory
from infinipipe_executor.pipeline.plan_checks import check_runnable, check_targets
from infinipipe_executor.pipeline.step_state import InFlight, StepState, begin_step
from infinipipe_executor.pipeline.stopwatch import MeasuredSpan
from infinipipe_kernels.attention import backend_for


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        loss: Sum of the cross-entropies of all targets of the batch, divided by their number; the same on every rank.
        z_loss: What the z-loss added to it in what was differentiated; the same on every rank.
        spans: Every pass of this stage with its measured time; none where this replica has no chunk.
        peak_bytes: Largest memory of this device during the step (``PeakMemory``).
    """

    loss: float
    z_loss: float
    spans: list[MeasuredSpan]
    peak_bytes: float


_Methods = Mapping[InstructionKind, Callable[[StepState, Instruction], None]]

# Messages of an evaluation that may be on their way to the next stage: one that it receives and one for its next pass.
_KEPT_MESSAGES = 2


class StepRunner:
    """Runs steps on one stage.

    Args:
        stage: The layers of this rank.
        mesh: Where this rank stands.
        shards_gradients: Whether every backward pass divides its gradients among the ranks of the stage (zero3); else
            they are added up whole, and the last one of the step divides them (zero2).
        z_loss: Weight of the squared log-sum-exp of the logits in what training minimises.
    """

    def __init__(self, stage: Stage, mesh: Mesh, *, shards_gradients: bool = True, z_loss: float = 0.0) -> None:
        self._stage = stage
        self._mesh = mesh
        self._shards_gradients = shards_gradients
        self._z_loss = z_loss
        self._attention = backend_for(mesh.device)
        self._memory = PeakMemory(stage, mesh.device)
        self._has_run = False
        self._training: _Methods = {
            InstructionKind.RECEIVE_ACTIVATION: self._receive,
            InstructionKind.FORWARD: self._forward,
            InstructionKind.SEND_ACTIVATION: self._send_activation,
            InstructionKind.RECEIVE_GRADIENT: self._receive,
            InstructionKind.BACKWARD: self._backward,
            InstructionKind.SEND_GRADIENT: self._send_gradient,
        }
        self._evaluation: _Methods = {
            InstructionKind.RECEIVE_ACTIVATION: self._receive,
            InstructionKind.FORWARD: self._evaluate,
            InstructionKind.SEND_ACTIVATION: self._send_and_wait,
        }

    @property
    def stage(self) -> Stage:
        """The layers of this rank."""
        return self._stage

    def run(self, plan: ExecutionPlan, batch: Batch) -> StepResult:
        """Run the forward and backward passes of one step; its gradients take the place of those of the step before.

        Args:
            plan: A validated plan for as many stages as the mesh has, the same on every rank.
            batch: The batch it was made for, the same on every rank.

        Raises:
            PlanError: If the plan was made for another batch or mesh, or a chunk is too large for attention.
            PeerLostError: If another rank is gone; names the instruction.
        """
        check_runnable(plan, self._stage.config, self._mesh)
        check_targets(plan, batch)
        state = begin_step(plan, batch, self._mesh, len(self._stage.layers))
        self._stage.zero_grad()
        self._memory.begin()
        instructions = lower_stage(plan, self._mesh.pp_rank, self._mesh.dp_rank)
        state.backwards_left = sum(instruction.kind is InstructionKind.BACKWARD for instruction in instructions)
        state.arrived_before = arrived_before(plan, self._mesh.pp_rank, self._mesh.dp_rank)
        self._walk(state, instructions, self._training, f"step {plan.step}")
        with peers_watched(self._mesh.rank, f"step {plan.step}, the sum of the gradients over the replicas"):
            sum_over_replicas(self._stage, self._mesh)
        with peers_watched(self._mesh.rank, f"step {plan.step}, the end of the step"):
            self._mesh.channels.flush()
            sum_tied_gradients(self._stage, self._mesh)
            dist.all_reduce(state.loss)
        assert not state.in_flight, "every chunk ran backward"
        assert not state.messages and not state.posted, "every message was used"
        assert all(cache.is_empty for cache in state.caches.values()), "every slice ran backward"
        held_whole_gradients = bool(instructions) and not self._shards_gradients
        whole_loss, z_loss = state.loss.tolist()
        peak_bytes = self._memory.end(whole_gradients=held_whole_gradients)
        return StepResult(whole_loss - z_loss, z_loss, state.stopwatch.read(), peak_bytes)

    @torch.no_grad()
    def evaluate(self, plan: ExecutionPlan, batch: Batch) -> float:
        """Run the forward passes of a plan alone: no dropout, no z-loss, no recompute; nothing of the model changes.

        All stages run forwards in one order, so their messages pair up without the backward passes in between. What
        the plan would keep for those is dropped at once; keys and values of a sequence go behind its last slice. A
        stage that is faster than the next one waits for it, so that messages do not pile up.

        Args:
            plan: A validated plan for as many stages as the mesh has, the same on every rank.
            batch: The batch it was made for, the same on every rank.

        Returns:
            Sum of the cross-entropies of all targets; the same on every rank.

        Raises:
            PlanError: If the plan was made for another mesh, or a chunk is too large for attention.
            PeerLostError: If another rank is gone; names the instruction.
        """
        check_runnable(plan, self._stage.config, self._mesh)
        state = begin_step(plan, batch, self._mesh, len(self._stage.layers))
        self._stage.eval()
        instructions = lower_stage(plan, self._mesh.pp_rank, self._mesh.dp_rank)
        self._walk(state, [one for one in instructions if one.kind in self._evaluation], self._evaluation, "evaluation")
        self._stage.train()
        with peers_watched(self._mesh.rank, "the end of an evaluation"):
            self._mesh.channels.flush()
            dist.all_reduce(state.loss)
        assert not state.messages and not state.posted, "every message was used"
        assert all(cache.is_empty for cache in state.caches.values()), "every sequence ran to its end"
        return float(state.loss[0])

    def _walk(self, state: StepState, instructions: Sequence[Instruction], methods: _Methods, what: str) -> None:
        """Run instructions in order; the receive behind a pass is started before it."""
        posts = receives_to_post(instructions)
        for index, instruction in enumerate(instructions):
            with peers_watched(self._mesh.rank, f"{what}, {_name(instruction)}"):
                if index in posts:
                    state.posted[posts[index]] = self._post(state, posts[index])
                methods[instruction.kind](state, instruction)

    def _evaluate(self, state: StepState, instruction: Instruction) -> None:
        chunk_id = instruction.chunk_id
        chunk_pass = self._chunk_pass(state, chunk_id, loss_scale=1.0)
        output: Tensor = self._stage(self._input(state, chunk_id), chunk_pass)
        self._has_run = True
        self._hand_on(state, chunk_id, output)
        for placed in chunk_pass.layout.slices:
            if placed.slice_count > 1 and placed.slice_index == placed.slice_count - 1:
                state.caches[placed.piece.sequence_index].clear()

    def _forward(self, state: StepState, instruction: Instruction) -> None:
        chunk_id = instruction.chunk_id
        chunk_pass = self._chunk_pass(
            state,
            chunk_id,
            loss_scale=1.0 / max(1, state.plan.target_token_count),
            recompute_layer_count=instruction.recompute_layer_count,
            z_loss=self._z_loss,
        )
        x = self._input(state, chunk_id)
        if not self._mesh.is_first_stage:
            x.requires_grad_()
        with state.stopwatch.span(ActionKind.FORWARD, chunk_id), self._memory.around_forward():
            output: Tensor = self._stage(x, chunk_pass)
        self._has_run = True
        state.in_flight[chunk_id] = InFlight(x, get_gradient_edge(output))
        self._hand_on(state, chunk_id, output.detach())

    def _chunk_pass(
        self,
        state: StepState,
        chunk_id: ChunkId,
        *,
        loss_scale: float,
        recompute_layer_count: int = 0,
        z_loss: float = 0.0,
    ) -> ChunkPass:
        layout, device = state.layouts[chunk_id], self._mesh.device
        return ChunkPass(
            layout=layout,
            caches=state.caches,
            rotary=rotary_table(layout.own_positions().to(device), self._stage.config, self._stage.dtype),
            exchange=HeadExchange(self._mesh.sp_group, layout.shares_tokens, self._mesh.sp_rank),
            attention=self._attention,
            recompute_layer_count=recompute_layer_count,
            target_ids=layout.own_target_ids(state.batch).to(device),
            loss_scale=loss_scale,
            z_loss=z_loss,
            z_sum=state.loss[1],
        )

    def _input(self, state: StepState, chunk_id: ChunkId) -> Tensor:
        if self._mesh.is_first_stage:
            return state.layouts[chunk_id].own_token_ids(state.batch).to(self._mesh.device)
        return state.messages.pop(chunk_id)

    def _hand_on(self, state: StepState, chunk_id: ChunkId, output: Tensor) -> None:
        if self._mesh.is_last_stage:
            state.loss[0] += output
        else:
            state.messages[chunk_id] = output

    def _send_activation(self, state: StepState, instruction: Instruction) -> None:
        _end(self._mesh.channels.to_next).send(state.messages.pop(instruction.chunk_id))

    def _send_and_wait(self, state: StepState, instruction: Instruction) -> None:
        self._send_activation(state, instruction)
        _end(self._mesh.channels.to_next).keep_last(_KEPT_MESSAGES)

    def _backward(self, state: StepState, instruction: Instruction) -> None:
        chunk_id = instruction.chunk_id
        x, output = state.in_flight.pop(chunk_id)
        gradient = None if self._mesh.is_last_stage else state.messages.pop(chunk_id)
        state.backwards_left -= 1
        reduce_in_next_backward(self._stage, reduces=self._shards_gradients or not state.backwards_left)
        with state.stopwatch.span(ActionKind.BACKWARD, chunk_id):
            torch.autograd.backward(output, gradient)
        if not self._mesh.is_first_stage:
            assert x.grad is not None, "the backward pass reached the input of the stage"
            state.messages[chunk_id] = x.grad

    def _send_gradient(self, state: StepState, instruction: Instruction) -> None:
        _end(self._mesh.channels.to_previous).send(state.messages.pop(instruction.chunk_id))

    def _post(self, state: StepState, instruction: Instruction) -> PostedReceive:
        channel, _ = self._ends(instruction)
        shape = (state.layouts[instruction.chunk_id].own_token_count, self._stage.config.hidden)
        return channel.post_receive(shape, self._stage.dtype, self._mesh.device)

    def _receive(self, state: StepState, instruction: Instruction) -> None:
        """Wait for a message; meanwhile gather the parameters that the pass behind it starts with."""
        posted = state.posted.pop(instruction, None) or self._post(state, instruction)
        if self._has_run:  # the sharding sets itself up in the first forward pass
            gather_ahead(self._stage, backward=instruction.kind is InstructionKind.RECEIVE_GRADIENT)
        message = posted.wait()
        if message.numel():
            _, back = self._ends(instruction)
            back.let_go(state.arrived_before.get(instruction, 0))  # nothing goes back in an evaluation
        state.messages[instruction.chunk_id] = message

    def _ends(self, receive: Instruction) -> tuple[Channel, Channel]:
        """The channel of a receive, and the one to the same neighbour."""
        channels = self._mesh.channels
        if receive.kind is InstructionKind.RECEIVE_ACTIVATION:
            return _end(channels.from_previous), _end(channels.to_previous)
        return _end(channels.from_next), _end(channels.to_next)


def _name(instruction: Instruction) -> str:
    name = instruction.kind.name.lower().replace("_", " ")
    pipeline_index, chunk_index = instruction.chunk_id
    return f"{name} of chunk {chunk_index} in pipeline {pipeline_index}"


def _end(channel: Channel | None) -> Channel:
    assert channel is not None, "the first and the last stage have no instruction beyond the pipeline"
    return channel
