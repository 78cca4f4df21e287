"""The memory of a stage at real sizes, measured on meta tensors, beside what the cost model predicts."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
import torch

from infinipipe_contract.model_memory import gathered_bytes, held_kv_dim, logits_bytes, token_bytes
from infinipipe_contract.plan import Chunk, ExecutionPlan
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_contract.simulate import simulate
from infinipipe_contract.working_memory import working_memory
from infinipipe_executor import profiler
from infinipipe_executor.config.cluster import ClusterConfig
from infinipipe_executor.data.batch import Batch, make_sequence
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.model.config import ModelConfig
from infinipipe_planner.analytic.profile import Hardware, build_profile
from support_executor.memory_meter import measure_stage
from support_executor.plans import chunk, cut, make_plan, uniform

pytest.importorskip("triton")

K = 1024
BF16_BYTES, FP32_BYTES = 2, 4


def _model(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **extra: Any) -> ModelConfig:
    return ModelConfig(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=128, ffn=ffn, vocab=vocab, **extra
    )


MODELS = {
    "llama-7b": _model(32, 4096, 32, 32, 11008, 32000),
    "llama-13b": _model(40, 5120, 40, 40, 13824, 32000),
    "llama-30b": _model(60, 6656, 52, 52, 17920, 32000),
    "llama3-8b": _model(32, 4096, 32, 8, 14336, 128256),
    "qwen2-7b": _model(28, 3584, 28, 4, 18944, 152064, has_qkv_bias=True),
    "qwen3-4b": _model(36, 2560, 32, 8, 9728, 151936, has_qk_norm=True, ties_embeddings=True),
}


def _batched() -> list[Chunk]:
    return [chunk(*(cut(4 * i + j, 12 * K)[0] for j in range(4))) for i in range(6)]


def _split() -> list[Chunk]:
    return [chunk(piece) for piece in cut(0, *[24 * K] * 8)]


def _hybrid() -> list[Chunk]:
    return [
        *(chunk(piece) for piece in cut(0, 24 * K, 16 * K, 12 * K)),
        chunk(*cut(1, 4 * K), *cut(2, 9 * K), *cut(3, 500)),
        chunk(cut(4, 21 * K, 10 * K)[0]),
        chunk(cut(4, 21 * K, 10 * K)[1], *cut(5, 3 * K), *cut(6, 6 * K)),
    ]


CHUNKS = {"batched": _batched, "split": _split, "hybrid": _hybrid}


def _batch(chunks: Sequence[Chunk]) -> Batch:
    lengths: dict[int, int] = {}
    for each in chunks:
        for piece in each.slices:
            lengths[piece.sequence_index] = max(lengths.get(piece.sequence_index, 0), piece.end_token)
    ids = torch.zeros(max(lengths.values()), dtype=torch.int64)
    mask = torch.ones(max(lengths.values()), dtype=torch.bool)
    return Batch(tuple(make_sequence(ids[: lengths[i]], mask[: lengths[i]]) for i in sorted(lengths)))


def _predict(config: ModelConfig, plan: ExecutionPlan, sp_size: int, stage_layers: Sequence[int]) -> list[float]:
    """Peaks of all stages beside model states."""
    shape, pp_size = config.shape, len(stage_layers)
    profile = Profile(
        name="shapes",
        model=ModelShape(
            shape.layers, shape.hidden, held_kv_dim(shape, sp_size), shape.ffn, shape.vocab, BF16_BYTES, shape.query_dim
        ),
        cluster=Cluster(pp_size, sp_size, 1e12, 1.0),
        forward=ComputeCost(1e-9, 1e-6, 1e-4),
        backward=ComputeCost(1e-9, 1e-6, 1e-4),
        all2all=LinkCost(1e9, 0.0),
        p2p=LinkCost(1e9, 0.0),
        param_gather_s=(0.0,) * pp_size,
        memory=MemoryCost(
            token_bytes(shape, BF16_BYTES, sp_size),
            logits_bytes(shape, BF16_BYTES),
            (0.0,) * pp_size,
            working_memory(shape, BF16_BYTES, sp_size),
        ),
        layer_division=tuple(stage_layers),
    )
    return [stage.peak_bytes for stage in simulate(plan.pipelines, profile).stages]


@pytest.mark.parametrize(
    ("model", "kind", "pp_size", "sp_size", "stage_index", "recomputed_share"),
    [
        ("llama-7b", "split", 4, 8, 0, 0.0),
        ("llama-7b", "batched", 4, 8, 3, 1.0),
        ("llama-7b", "hybrid", 4, 8, 1, 0.5),
        ("llama-13b", "split", 4, 8, 3, 0.5),
        ("llama-13b", "batched", 4, 1, 0, 0.0),
        ("llama-30b", "hybrid", 4, 4, 0, 1.0),
        ("llama-30b", "split", 4, 4, 2, 0.0),
        ("llama3-8b", "split", 2, 2, 1, 1.0),
        ("llama3-8b", "hybrid", 2, 1, 0, 0.5),
        ("qwen2-7b", "batched", 4, 2, 3, 0.0),
        ("qwen2-7b", "split", 4, 2, 1, 1.0),
        ("qwen3-4b", "hybrid", 4, 8, 3, 0.0),
        ("qwen3-4b", "split", 4, 1, 0, 0.5),
        ("qwen3-4b", "batched", 4, 8, 2, 1.0),
    ],
)
def test_the_peak_of_a_stage_is_what_the_cost_model_predicts(
    model: str, kind: str, pp_size: int, sp_size: int, stage_index: int, recomputed_share: float
) -> None:
    # Two layers a stage and three on the last one: the layers are alike, and the hard case is where one weighs most.
    stage_layers = [2] * (pp_size - 1) + [3]
    config = dataclasses.replace(MODELS[model], layers=sum(stage_layers))
    chunks = CHUNKS[kind]()
    batch = _batch(chunks)
    recompute = uniform(round(recomputed_share * stage_layers[stage_index]))
    plan = make_plan([chunks], pp_size, batch, recompute)

    measured_bytes = measure_stage(config, plan, batch, sp_size, stage_index, stage_layers).peak_bytes

    predicted_bytes = _predict(config, plan, sp_size, stage_layers)[stage_index]
    assert measured_bytes == pytest.approx(predicted_bytes, rel=0.02)


@pytest.mark.parametrize("stage_index", [0, 1, 3])
@pytest.mark.parametrize("gradient_policy", ["zero3", "zero2"])
def test_an_analytic_profile_predicts_all_that_a_device_holds(gradient_policy: str, stage_index: int) -> None:
    sp_size, shards_gradients = 2, gradient_policy == "zero3"
    config = dataclasses.replace(MODELS["llama-7b"], layers=9)
    profile = _analytic(config, sp_size, shards_gradients=shards_gradients)
    chunks = _hybrid()
    batch = _batch(chunks)
    plan = make_plan([chunks], 4, batch)

    measured = measure_stage(config, plan, batch, sp_size, stage_index, profile.stage_layers)

    # Parameters and two moments in fp32 are divided, gradients under zero3 only; what is gathered is a formula.
    divided = 4 / sp_size if shards_gradients else 3 / sp_size + 1
    held_bytes = measured.peak_bytes + FP32_BYTES * divided * measured.gradient_count
    held_bytes += gathered_bytes(config.shape, 4, stage_index, BF16_BYTES, stage_layers=profile.stage_layers)
    predicted_bytes = simulate(plan.pipelines, profile).stages[stage_index].peak_bytes
    assert held_bytes == pytest.approx(predicted_bytes, rel=0.02)


@pytest.mark.parametrize("gradient_policy", ["zero3", "zero2"])
def test_an_analytic_profile_counts_memory_as_a_run_on_cuda_does(
    monkeypatch: pytest.MonkeyPatch, gradient_policy: Literal["zero3", "zero2"]
) -> None:
    config = dataclasses.replace(MODELS["qwen2-7b"], layers=9)
    profile = _analytic(config, 2, shards_gradients=gradient_policy == "zero3")
    cluster = ClusterConfig(
        pp_size=4, sp_size=2, device="cuda", device_memory_mib=80_000, gradient_policy=gradient_policy
    )
    for name in ("measure_all2all", "measure_p2p"):
        monkeypatch.setattr(profiler, name, lambda _: LinkCost(1e9, 0.0))
    mesh = SimpleNamespace(dp_size=1, pp_size=4, sp_size=2, device=torch.device("cuda"))

    measured = profiler._base_profile(config, cluster, cast("Mesh", mesh), BF16_BYTES, profile.stage_layers)

    assert measured.memory == profile.memory


def _analytic(config: ModelConfig, sp_size: int, *, shards_gradients: bool) -> Profile:
    hardware = Hardware("h100", nodes=1, devices_per_node=4 * sp_size)
    return build_profile(config.shape, hardware, 4, sp_size, model_name="m", shards_gradients=shards_gradients)
