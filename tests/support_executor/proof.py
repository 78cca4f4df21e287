"""The proof: loss and every gradient of a step equal those of the reference."""

from dataclasses import replace

import torch

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.validate import validate
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.model.config import ModelConfig
from support_executor.closeness import relative_error
from support_executor.groups import GroupPool
from support_executor.profiles import make_profile
from support_executor.ranks import SEED, RankStep, run_step
from support_executor.reference import TINY, ReferenceStep, reference_step

TOLERANCE = 1e-10
"""In fp64; what is measured is about 1e-15."""

_references: dict[tuple[ModelConfig, str], ReferenceStep] = {}


def run_plan(
    groups: GroupPool,
    plan: ExecutionPlan,
    batch: Batch,
    sp_size: int,
    config: ModelConfig = TINY,
    dtype: torch.dtype = torch.float64,
    *,
    dp_size: int = 1,
    shards_gradients: bool = True,
    stage_layers: tuple[int, ...] | None = None,
) -> list[RankStep]:
    """Run a plan on as many ranks as it has stages, times ``sp_size``, times ``dp_size``."""
    pp_size = plan.stage_count
    args = (config, pp_size, sp_size, plan, batch, dtype, dp_size, shards_gradients, stage_layers)
    steps: list[RankStep] = groups.run(dp_size * pp_size * sp_size, run_step, *args)
    return steps


def gradients_of(steps: list[RankStep]) -> dict[str, torch.Tensor]:
    return {name: gradient for step in steps for name, gradient in step.gradients.items()}


def largest_error(steps: list[RankStep], reference: ReferenceStep) -> float:
    """Largest relative error of the loss, as every rank tells it, and of every gradient on every replica."""
    assert gradients_of(steps).keys() == reference.gradients.keys()
    errors = [
        relative_error(gradient, reference.gradients[name])
        for step in steps
        for name, gradient in step.gradients.items()
    ]
    scale = abs(reference.loss) or 1.0
    return max(errors + [abs(step.loss - reference.loss) / scale for step in steps])


def prove(
    groups: GroupPool,
    plan: ExecutionPlan,
    batch: Batch,
    sp_size: int,
    config: ModelConfig = TINY,
    *,
    dp_size: int = 1,
    shards_gradients: bool = True,
    stage_layers: tuple[int, ...] | None = None,
) -> list[RankStep]:
    """Run a plan, which must be valid, and compare it with the reference."""
    profile = make_profile(config, plan.stage_count, sp_size, dp_size=dp_size)
    validate(plan, batch.lengths_tokens, replace(profile, layer_division=stage_layers))
    steps = run_plan(
        groups,
        plan,
        batch,
        sp_size,
        config,
        dp_size=dp_size,
        shards_gradients=shards_gradients,
        stage_layers=stage_layers,
    )
    error = largest_error(steps, _reference(config, batch))
    assert error <= TOLERANCE, f"relative error {error:.1e}"
    return steps


def _reference(config: ModelConfig, batch: Batch) -> ReferenceStep:
    key = (config, batch.digest())
    if key not in _references:
        _references[key] = reference_step(config, SEED, batch)
    return _references[key]
