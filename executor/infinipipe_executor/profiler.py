"""Profiler: the numbers of the cost model, measured on this machine before the job starts.

All ranks run probe plans through their own stages with the ordinary runner, so that what is measured is what training
does: messages, sharding and neighbours on the same cores included. The head is measured apart, and Eq. 1 is fitted to
the layers alone: to the slowest rank of every stage, mean over the stages. Entry point: ``measure_profile``.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from infinipipe_contract.cost_model import CostModel
from infinipipe_contract.model_memory import gathered_bytes, held_kv_dim, logits_bytes, model_state_bytes, token_bytes
from infinipipe_contract.plan import (
    Action,
    ActionKind,
    Chunk,
    Estimate,
    ExecutionPlan,
    Pipeline,
    Slice,
    SolveOutcome,
    SolveReport,
    plan_digest,
)
from infinipipe_contract.profile import Cluster, ComputeCost, HeadCost, MemoryCost, ModelShape, Profile, check_profile
from infinipipe_contract.stages import divide_layers
from infinipipe_contract.working_memory import working_memory
from infinipipe_executor.config import ClusterConfig
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.fit import Fit, PassSample, fit_compute_cost
from infinipipe_executor.head_timer import HeadTimer
from infinipipe_executor.links import mean_of_stages, measure_all2all, measure_p2p, slowest
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_executor.pipeline.runner import StepRunner

logger = logging.getLogger(__name__)

# Runs of every probe that count; the median of them is taken. One more warms up.
REPEATS = 3

# Share of a pass that counts as computation at least.
MIN_COMPUTE_RATIO = 0.1

# Shorter probes would measure nothing but the fixed cost.
_MIN_PROBE_TOKENS = 64


def measure_profile(
    model: ModelConfig,
    cluster: ClusterConfig,
    mesh: Mesh,
    runner: StepRunner,
    context_tokens: int,
    dtype_bytes: int,
    *,
    stage_layers: tuple[int, ...] | None = None,
) -> Profile:
    """Measure this machine; a collective of all ranks that leaves gradients in the runner's stage.

    Args:
        model: Sizes of the model.
        cluster: Sizes of the cluster.
        mesh: Where this rank stands.
        runner: Runs the probes.
        context_tokens: Longest sequence of the job; probes are as long, if half of the memory holds them.
        dtype_bytes: Bytes of one activation element.
        stage_layers: Layers of every stage, as the runner's stage has them; None divides them evenly.

    Returns:
        The profile, equal on all ranks; its comment says how well it fits.

    Raises:
        PeerLostError: If another rank is gone.
    """
    stage_layers = stage_layers or divide_layers(model.layers, mesh.pp_size)
    base = _base_profile(model, cluster, mesh, dtype_bytes, stage_layers)
    probe_tokens = min(context_tokens, max(_MIN_PROBE_TOKENS, _fitting_tokens(base) // 2))
    probes = probe_chunks(probe_tokens)
    times = _time_probes(probes, base, mesh, runner)
    chunks = [chunk for probe in probes for chunk in probe]
    forward, backward = (_fit(chunks, seconds, base) for seconds in (times.forward_s, times.backward_s))
    own_tokens = sum(chunk.token_count for chunk in chunks) / mesh.sp_size
    profile = replace(
        base,
        head=HeadCost(times.head_forward_s / own_tokens, times.head_backward_s / own_tokens),
        forward=forward.cost,
        backward=backward.cost,
        comment=(
            f"measured with sequences of up to {probe_tokens} tokens, times of longer ones are extrapolated; "
            f"passes not seen by the fit are off by {forward.unseen_error_ratio:.1%} forward, "
            f"{backward.unseen_error_ratio:.1%} backward"
        ),
        measured_tokens=probe_tokens,
    )
    check_profile(profile)
    return profile


def _fit(chunks: Sequence[Chunk], seconds: Sequence[float], base: Profile) -> Fit:
    """Fit Eq. 1 to what is left of the measured passes without their all-to-alls (Eq. 4)."""
    costs = CostModel(base)
    samples = [
        PassSample(
            quadratic=sum(piece.end_token**2 - piece.start_token**2 for piece in chunk.slices),
            tokens=chunk.token_count,
            # The link alone can be slower than in a pass: never leave a pass without computation.
            compute_s=max(passed_s - costs.all2all_s(chunk.token_count), MIN_COMPUTE_RATIO * passed_s),
        )
        for chunk, passed_s in zip(chunks, seconds, strict=True)
    ]
    return fit_compute_cost(samples, base.device_count, base.cluster.pp_size)


def probe_chunks(tokens: int) -> list[list[Chunk]]:
    """Make the probes: a grid of contexts and lengths, with batched, split and hybrid chunks.

    Args:
        tokens: Tokens of the longest probe sequence, at least 16.

    Returns:
        The chunks of every probe, in forward order; each probe holds at most about twice ``tokens`` tokens.
    """
    return [
        _sliced(0, tokens, 4),
        [*_sliced(0, tokens // 2, 4), Chunk((Slice(1, 0, tokens // 2),))],
        # Large chunks, which take less time a token than what small ones would make of them.
        [Chunk((Slice(0, 0, tokens),)), Chunk(tuple(Slice(index, 0, tokens // 4) for index in range(1, 5)))],
        [
            Chunk(tuple(Slice(index, 0, tokens // 16) for index in range(8))),
            Chunk(tuple(Slice(index, 0, max(1, tokens // 64)) for index in range(8, 12))),
            Chunk((Slice(12, 0, max(1, tokens // 64)),)),
            *_sliced(13, tokens // 4, 2, beside=Slice(14, 0, tokens // 8)),
        ],
    ]


def _sliced(sequence_index: int, tokens: int, count: int, beside: Slice | None = None) -> list[Chunk]:
    """Cut one sequence into equal slices, a chunk each; the last chunk also holds ``beside``."""
    length = tokens // count
    chunks = [Chunk((Slice(sequence_index, index * length, length),)) for index in range(count)]
    if beside is not None:
        chunks[-1] = Chunk((*chunks[-1].slices, beside))
    return chunks


def _base_profile(
    model: ModelConfig, cluster: ClusterConfig, mesh: Mesh, dtype_bytes: int, stage_layers: tuple[int, ...]
) -> Profile:
    """Everything but the compute cost."""
    dp_size, pp_size, sp_size = mesh.dp_size, mesh.pp_size, mesh.sp_size
    # The meter of the CPU sees neither gathered parameters nor temporaries, the allocator of CUDA sees all.
    tells_all = mesh.device.type == "cuda"
    layout = f"pp{pp_size}-sp{sp_size}" if dp_size == 1 else f"dp{dp_size}-pp{pp_size}-sp{sp_size}"
    return Profile(
        name=f"measured-{cluster.device}-{layout}",
        model=ModelShape(
            model.layers,
            model.hidden,
            held_kv_dim(model.shape, sp_size),
            model.ffn,
            model.vocab,
            dtype_bytes,
            None if model.query_dim == model.hidden else model.query_dim,
        ),
        cluster=Cluster(pp_size, sp_size, cluster.device_memory_bytes, cluster.usable_memory_ratio, dp_size),
        forward=ComputeCost(0.0, 0.0, 0.0),
        backward=ComputeCost(0.0, 0.0, 0.0),
        all2all=measure_all2all(mesh),
        p2p=measure_p2p(mesh),
        param_gather_s=(0.0,) * pp_size,  # part of a chunk's fixed cost, as it is measured
        memory=MemoryCost(
            token_bytes=token_bytes(model.shape, dtype_bytes, sp_size),
            logits_bytes=logits_bytes(model.shape, dtype_bytes),
            model_state_bytes=tuple(
                model_state_bytes(
                    model.shape,
                    pp_size,
                    sp_size,
                    p,
                    shards_gradients=cluster.shards_gradients,
                    stage_layers=stage_layers,
                )
                + (
                    gathered_bytes(model.shape, pp_size, p, dtype_bytes, stage_layers=stage_layers)
                    if tells_all
                    else 0.0
                )
                for p in range(pp_size)
            ),
            working=working_memory(model.shape, dtype_bytes, sp_size) if tells_all else None,
        ),
        layer_division=stage_layers,
    )


def _fitting_tokens(base: Profile) -> int:
    """Tokens whose activations fit into every stage at once, without recompute."""
    costs = CostModel(base)
    return min(
        int(
            (base.usable_memory_bytes - state_bytes)
            / (costs.full_activation_bytes(1, p, keeps_kv=True) + costs.working_bytes(1))
        )
        for p, state_bytes in enumerate(base.memory.model_state_bytes)
    )


class _ProbeTimes(NamedTuple):
    """Seconds of the layers of a stage with its even share, by chunk; seconds of the head over all chunks."""

    forward_s: list[float]
    backward_s: list[float]
    head_forward_s: float
    head_backward_s: float


def _time_probes(probes: list[list[Chunk]], base: Profile, mesh: Mesh, runner: StepRunner) -> _ProbeTimes:
    """Run every probe, layers and head apart."""
    # The cost model is of a stage with its even share of the layers.
    share = CostModel(base).stage_shares[mesh.pp_rank]
    layers_s: list[float] = []
    heads_s: list[float] = []
    for number, chunks in enumerate(probes, start=1):
        logger.info("measuring this machine: probe %d of %d", number, len(probes))
        plan, batch = _probe_plan(chunks, mesh), _probe_batch(chunks, base.model.vocab)
        runs: list[dict[tuple[ActionKind, int], tuple[float, float]]] = []
        for _ in range(REPEATS + 1):
            with HeadTimer(runner.stage, mesh.device) as head:
                spans = runner.run(plan, batch).spans
            seconds = {(span.kind, span.chunk_id.chunk_index): span.end_s - span.start_s for span in spans}
            runs.append({key: (passed_s, head.seconds(*key)) for key, passed_s in seconds.items()})
        for index in range(len(chunks)):
            for kind in ActionKind:
                of_pass = [run[kind, index] for run in runs[1:]]
                layers_s.append(statistics.median(passed_s - head_s for passed_s, head_s in of_pass) / share)
                heads_s.append(statistics.median(head_s for _, head_s in of_pass))
    layers_s, heads_s = mean_of_stages(layers_s, mesh), slowest(heads_s, mesh)
    return _ProbeTimes(layers_s[0::2], layers_s[1::2], sum(heads_s[0::2]), sum(heads_s[1::2]))


def _probe_plan(chunks: list[Chunk], mesh: Mesh) -> ExecutionPlan:
    """All chunks forward, then backward in reverse: the simplest order that keeps all stages at work.

    Every replica runs the same chunks in a pipeline of its own: neighbours on the machine are as busy as in training.
    """
    forward = [Action(ActionKind.FORWARD, index) for index in range(len(chunks))]
    backward = [Action(ActionKind.BACKWARD, index) for index in reversed(range(len(chunks)))]
    lengths = _probe_lengths(chunks)
    plan = ExecutionPlan(
        job="",
        generation=0,
        step=0,
        policy="probe",
        pipelines=tuple(
            Pipeline(tuple(chunks), ((*forward, *backward),) * mesh.pp_size, replica_index)
            for replica_index in range(mesh.dp_size)
        ),
        target_token_count=sum(length - 1 for length in lengths),
        estimate=Estimate(0.0, 0.0, 0.0, 0.0, ()),
        report=SolveReport(SolveOutcome.FALLBACK, 0.0, 1),
    )
    return replace(plan, digest=plan_digest(plan))


def _probe_lengths(chunks: list[Chunk]) -> list[int]:
    ends: dict[int, int] = {}
    for chunk in chunks:
        for piece in chunk.slices:
            ends[piece.sequence_index] = max(ends.get(piece.sequence_index, 0), piece.end_token)
    return [ends[index] for index in sorted(ends)]


def _probe_batch(chunks: list[Chunk], vocab: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(
        tuple(make_sequence(torch.randint(vocab, (length,), generator=generator)) for length in _probe_lengths(chunks))
    )
