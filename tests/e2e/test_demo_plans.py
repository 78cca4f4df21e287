"""What the demo promises to show is in the plans of its own batches: its configuration, its corpus, a fixed profile."""

import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from infinipipe_contract.model_memory import held_kv_dim, logits_bytes, model_state_bytes, token_bytes
from infinipipe_contract.plan import ChunkKind
from infinipipe_contract.profile import Cluster, ComputeCost, LinkCost, MemoryCost, ModelShape, Profile
from infinipipe_contract.validate import validate
from infinipipe_executor.config import RunConfig, load_config
from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.metrics import describe_plan
from infinipipe_executor.model.source import open_model
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

pytestmark = pytest.mark.e2e

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.toml"
FP32_BYTES = 4


# Times of small CPUs, rounded: forward alpha1, alpha2 and beta1; backward takes twice as long.
SLOW_TOKENS = ComputeCost(alpha1=4e-8, alpha2=2e-4, beta1=8e-3)
SLOW_CHUNKS = ComputeCost(alpha1=3.4e-8, alpha2=2.8e-5, beta1=0.08)


def demo_profile(config: RunConfig, forward: ComputeCost) -> Profile:
    """Memory as the demo counts it."""
    model, cluster = open_model(config).config, config.cluster
    pp_size, sp_size = cluster.pp_size, cluster.sp_size
    return Profile(
        name="a small CPU",
        model=ModelShape(
            model.layers, model.hidden, held_kv_dim(model.shape, sp_size), model.ffn, model.vocab, FP32_BYTES
        ),
        cluster=Cluster(pp_size, sp_size, cluster.device_memory_bytes, cluster.usable_memory_ratio),
        forward=forward,
        backward=ComputeCost(2 * forward.alpha1, 2 * forward.alpha2, 2 * forward.beta1),
        all2all=LinkCost(bandwidth_bytes_per_s=1e9, latency_s=1e-4),
        p2p=LinkCost(bandwidth_bytes_per_s=1e9, latency_s=1e-4),
        param_gather_s=(0.0,) * pp_size,
        memory=MemoryCost(
            token_bytes=token_bytes(model.shape, FP32_BYTES, sp_size),
            logits_bytes=logits_bytes(model.shape, FP32_BYTES),
            model_state_bytes=tuple(model_state_bytes(model.shape, pp_size, sp_size, p) for p in range(pp_size)),
        ),
    )


@pytest.mark.parametrize("forward", [SLOW_TOKENS, SLOW_CHUNKS], ids=["slow tokens", "slow chunks"])
def test_the_plans_of_the_demo_show_all_kinds_of_chunk_several_slice_numbers_and_recompute(
    tmp_path: Path, forward: ComputeCost
) -> None:
    config = load_config(DEMO)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    corpus = open_corpus(
        config.data.model_copy(update={"corpus": stdlib, "cache": tmp_path / "cache"}), open_model(config).config.vocab
    )
    sampler = BatchSampler(len(corpus), config.data.sequences_per_batch, config.job.seed)
    profile, options = demo_profile(config, forward), PlanOptions(policy=config.planner.policy)
    shapes = []
    for step in range(config.job.steps):
        lengths = [len(corpus.sequence(index).token_ids) for index in sampler.indices(step)]
        plan = solve_plan(lengths, profile, options)
        validate(plan, lengths, profile)
        shapes.append(describe_plan(plan))

    kinds = sum((shape.chunk_count_by_kind for shape in shapes), Counter[ChunkKind]())
    assert kinds.keys() == set(ChunkKind)
    assert len({shape.longest_slice_count for shape in shapes}) > 1
    assert sum(shape.recomputed_layer_count > 0 for shape in shapes) >= len(shapes) // 2
    assert corpus.report.cut.longer_count > 0
