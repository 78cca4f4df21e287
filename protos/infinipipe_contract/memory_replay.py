"""Memory of one stage over its passes: what its chunks hold after each, and the most in between.

Without ``MemoryCost.working`` this is the paper's (Eqs. 6 to 8): bytes held after each pass, gradients of keys and
values counted from the forward pass on. With it, gradients of keys and values count from the pass that makes them, only
for slices that have a later one, and every pass counts what it needs while it runs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.plan import ActionKind, ChunkId, Pipeline, Slice, slices_by_sequence
from infinipipe_contract.working_memory import WorkingMemory


class MemoryPass(NamedTuple):
    """One action of a stage: its chunk, the layers it recomputes, and the paper's bytes from forward to backward."""

    kind: ActionKind
    chunk_id: ChunkId
    recompute_layer_count: int
    held_bytes: float


class StageMemory(NamedTuple):
    """Bytes of one device after every pass, the most at any moment, and the index of the pass it is in (0 of none).

    Model states are included.
    """

    after_bytes: tuple[float, ...]
    peak_bytes: float
    peak_pass_index: int


def replay_memory(
    passes: Sequence[MemoryPass], pipelines: Mapping[int, Pipeline], costs: CostModel, stage_index: int
) -> StageMemory:
    """Add up the bytes in use after every pass, and find the most.

    Args:
        passes: Passes of one stage in the order they run.
        pipelines: Their pipelines, by index.
        costs: Cost model.
        stage_index: 0-based stage.
    """
    memory = costs.profile.memory
    live_bytes = peak_bytes = memory.model_state_bytes[stage_index]
    peak_pass_index = 0
    after = []
    if memory.working is not None:
        replay = _WorkingReplay(pipelines, costs, stage_index, memory.working)
        for index, this in enumerate(passes):
            within_bytes = replay.run(this, passes[index + 1] if index + 1 < len(passes) else None)
            if live_bytes + within_bytes > peak_bytes:
                peak_bytes, peak_pass_index = live_bytes + within_bytes, index
            after.append(live_bytes + replay.held_bytes)
        return StageMemory(tuple(after), peak_bytes, peak_pass_index)
    for index, this in enumerate(passes):
        live_bytes += this.held_bytes if this.kind is ActionKind.FORWARD else -this.held_bytes
        if live_bytes > peak_bytes:
            peak_bytes, peak_pass_index = live_bytes, index
        after.append(live_bytes)
    return StageMemory(tuple(after), peak_bytes, peak_pass_index)


class _Held(NamedTuple):
    """What one chunk holds on a stage between its passes: bytes of one kept and one recomputed layer, and the rest."""

    kept_layer: float
    recomputed_layer: float
    behind_layers: float
    chunk: float
    recompute_layer_count: int
    layer_count: int

    def below(self, layer_count: int) -> float:
        """Bytes of the first layers, and of what the chunk needs in all of them."""
        recomputed = min(layer_count, self.recompute_layer_count)
        return self.chunk + recomputed * self.recomputed_layer + (layer_count - recomputed) * self.kept_layer

    @property
    def total(self) -> float:
        return self.below(self.layer_count) + self.behind_layers


class _WorkingReplay:
    """Replay with ``WorkingMemory``; ``held_bytes`` is what all chunks hold, without model states."""

    def __init__(
        self, pipelines: Mapping[int, Pipeline], costs: CostModel, stage_index: int, working: WorkingMemory
    ) -> None:
        self.held_bytes = 0.0
        self._pipelines = pipelines
        self._costs = costs
        self._working = working
        self._layer_count = costs.stage_layers[stage_index]
        self._is_first = stage_index == 0
        self._is_last = stage_index == costs.profile.cluster.pp_size - 1
        self._chunks: dict[ChunkId, _Held] = {}
        self._sent: dict[ActionKind, ChunkId] = {}  # the last message each way: it stays until the next one is sent
        self._gradients: dict[tuple[int, Slice], float] = {}  # bytes over all layers, by pipeline and slice
        self._slices = {
            index: {sequence: [piece for piece, _ in of] for sequence, of in slices_by_sequence(p.chunks).items()}
            for index, p in pipelines.items()
        }

    def run(self, this: MemoryPass, following: MemoryPass | None) -> float:
        """Run a pass; return the most that is held while it runs.

        Args:
            this: The pass.
            following: The pass behind it, whose message may come already.
        """
        if this.kind is ActionKind.BACKWARD and self._sent.get(ActionKind.FORWARD) == this.chunk_id:
            del self._sent[ActionKind.FORWARD]  # its gradient comes back, so it has arrived
        waiting = list(self._sent.values())
        if following is not None and not self._is_end(following.kind, sends=False):
            waiting.append(following.chunk_id)
        message_bytes = sum(map(self._message_bytes, waiting))
        if not self._is_end(this.kind, sends=True):
            self._sent[this.kind] = this.chunk_id
        return message_bytes + self._compute(this)

    def _is_end(self, kind: ActionKind, *, sends: bool) -> bool:
        """Whether there is no stage that a pass sends to, or receives from."""
        return self._is_last if (kind is ActionKind.FORWARD) == sends else self._is_first

    def _message_bytes(self, chunk_id: ChunkId) -> float:
        profile = self._costs.profile
        tokens = self._pipelines[chunk_id.pipeline_index].chunks[chunk_id.chunk_index].token_count
        return profile.model.dtype_bytes * profile.model.hidden * tokens / profile.cluster.sp_size

    def _compute(self, this: MemoryPass) -> float:
        """Run the computation of a pass; return the most that is held, without messages of other passes."""
        sp_size = self._costs.profile.cluster.sp_size
        chunk = self._pipelines[this.chunk_id.pipeline_index].chunks[this.chunk_id.chunk_index]
        own_tokens = chunk.token_count / sp_size
        if this.kind is ActionKind.FORWARD:
            held = self._chunks[this.chunk_id] = self._price(this)
            self.held_bytes += held.total
            saves_nothing = held.recompute_layer_count >= held.layer_count
            temporary = self._working.recompute_token_bytes if saves_nothing else self._working.forward_token_bytes
            return max(self.held_bytes, self.held_bytes - held.behind_layers + own_tokens * temporary)
        held = self._chunks.pop(this.chunk_id)
        before_bytes = self.held_bytes
        new_bytes, own_bytes = self._move_gradients(this.chunk_id)
        self.held_bytes += new_bytes - own_bytes - held.total
        input_bytes = self._message_bytes(this.chunk_id)
        peak_bytes = before_bytes + input_bytes
        # The most is needed in the uppermost layer, in the uppermost one that is recomputed, or in the lowest.
        for layer in {held.layer_count, max(1, held.recompute_layer_count), 1}:
            rising = layer * (own_bytes - new_bytes) / held.layer_count
            level_bytes = self.held_bytes + rising + held.below(layer)
            if layer <= held.recompute_layer_count:
                level_bytes += held.kept_layer - input_bytes
            running_bytes = own_tokens * self._working.backward_token_bytes
            if any(piece.start_token for piece in chunk.slices):
                in_context_bytes = own_tokens * self._working.context_token_bytes - held.kept_layer
                running_bytes = max(running_bytes, in_context_bytes + new_bytes / held.layer_count)
            peak_bytes = max(peak_bytes, level_bytes + running_bytes)
        return peak_bytes

    def _price(self, this: MemoryPass) -> _Held:
        profile = self._costs.profile
        sp_size, model, memory = profile.cluster.sp_size, profile.model, profile.memory
        pipeline_index, chunk_index = this.chunk_id
        slices = self._pipelines[pipeline_index].chunks[chunk_index].slices
        own_tokens = sum(piece.length_tokens for piece in slices) / sp_size
        kept_tokens = sum(piece.length_tokens for piece in slices if self._has_later(pipeline_index, piece)) / sp_size
        return _Held(
            kept_layer=own_tokens * memory.token_bytes / model.layers,
            recomputed_layer=model.dtype_bytes * (own_tokens * model.hidden + 2 * kept_tokens * model.kv_dim),
            behind_layers=own_tokens * memory.logits_bytes if self._is_last else 0.0,
            chunk=own_tokens * self._working.chunk_token_bytes,
            recompute_layer_count=this.recompute_layer_count,
            layer_count=self._layer_count,
        )

    def _has_later(self, pipeline_index: int, piece: Slice) -> bool:
        return self._slices[pipeline_index][piece.sequence_index][-1] != piece

    def _move_gradients(self, chunk_id: ChunkId) -> tuple[float, float]:
        """Make the gradients that a backward pass sends to earlier slices; take those that were sent to its own."""
        pipeline_index, chunk_index = chunk_id
        profile = self._costs.profile
        width_bytes = 2 * self._layer_count * profile.model.kv_dim * self._working.kv_gradient_bytes
        new_bytes = own_bytes = 0.0
        for piece in self._pipelines[pipeline_index].chunks[chunk_index].slices:
            own_bytes += self._gradients.pop((pipeline_index, piece), 0.0)
            for earlier in self._slices[pipeline_index][piece.sequence_index]:
                key = (pipeline_index, earlier)
                if earlier.start_token < piece.start_token and key not in self._gradients:
                    self._gradients[key] = earlier.length_tokens / profile.cluster.sp_size * width_bytes
                    new_bytes += self._gradients[key]
        return new_bytes, own_bytes
