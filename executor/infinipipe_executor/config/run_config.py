"""A whole configuration: all sections together."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from infinipipe_executor.config.checkpoint import CheckpointConfig
from infinipipe_executor.config.cluster import ClusterConfig
from infinipipe_executor.config.data import DataConfig
from infinipipe_executor.config.evaluation import EvaluationConfig
from infinipipe_executor.config.job import JobConfig
from infinipipe_executor.config.metrics import MetricsConfig
from infinipipe_executor.config.model import ModelSection
from infinipipe_executor.config.optimizer import OptimizerConfig
from infinipipe_executor.config.planner import PlannerConfig
from infinipipe_executor.config.section import Section


class RunConfig(Section):
    """A whole configuration file; one attribute a section."""

    job: JobConfig
    model: ModelSection
    data: DataConfig
    cluster: ClusterConfig
    optimizer: OptimizerConfig
    planner: PlannerConfig = PlannerConfig()
    evaluation: Annotated[EvaluationConfig | None, Field(validate_default=True)] = None
    checkpoint: CheckpointConfig | None = None
    metrics: MetricsConfig = MetricsConfig()

    @field_validator("optimizer")
    @classmethod
    def _check_warmup(cls, optimizer: OptimizerConfig, info: ValidationInfo) -> OptimizerConfig:
        """Refuse a rate that would have to fall before it has risen."""
        falls = optimizer.schedule != "constant" and optimizer.decay_steps is None
        if falls and "job" in info.data and optimizer.warmup_steps >= info.data["job"].steps:
            raise ValueError(
                f"warmup_steps is {optimizer.warmup_steps}, it must be less than decay_steps, which is [job] steps, "
                f"{info.data['job'].steps}"
            )
        return optimizer

    @field_validator("evaluation")
    @classmethod
    def _check_held_out(cls, evaluation: EvaluationConfig | None, info: ValidationInfo) -> EvaluationConfig | None:
        """Refuse held-out data that nobody looks at, and looking without data."""
        if "data" not in info.data:  # itself at fault, which is said
            return evaluation
        has_corpus = info.data["data"].evaluation_corpus is not None
        if has_corpus and evaluation is None:
            raise ValueError("[data] evaluation_corpus is set, add this section with every_steps or leave the key out")
        if evaluation is not None and not has_corpus:
            raise ValueError("there are no held-out data, set [data] evaluation_corpus or leave this section out")
        return evaluation
