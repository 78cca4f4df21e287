"""Configuration of a training run: one file a section, ``file`` reads them all, ``run_config`` puts them together."""

from infinipipe_executor.config.address import check_address
from infinipipe_executor.config.checkpoint import CheckpointConfig
from infinipipe_executor.config.cluster import ClusterConfig
from infinipipe_executor.config.data import DataConfig
from infinipipe_executor.config.evaluation import EvaluationConfig
from infinipipe_executor.config.file import load_config
from infinipipe_executor.config.metrics import MetricsConfig
from infinipipe_executor.config.optimizer import OptimizerConfig
from infinipipe_executor.config.planner import PlannerConfig
from infinipipe_executor.config.run_config import RunConfig
from infinipipe_executor.config.world import check_world

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "DataConfig",
    "EvaluationConfig",
    "MetricsConfig",
    "OptimizerConfig",
    "PlannerConfig",
    "RunConfig",
    "check_address",
    "check_world",
    "load_config",
]
