"""A whole configuration: all sections together."""

from infinipipe_executor.config.checkpoint import CheckpointConfig
from infinipipe_executor.config.cluster import ClusterConfig
from infinipipe_executor.config.data import DataConfig
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
    checkpoint: CheckpointConfig | None = None
    metrics: MetricsConfig = MetricsConfig()
