"""The ranks that torchrun has started, against those that the configuration needs."""

import os

from infinipipe_executor.config.cluster import ClusterConfig
from infinipipe_executor.errors import ConfigError


def check_world(cluster: ClusterConfig) -> None:
    """Refuse another number of ranks than the layout has; without torchrun there is one.

    Raises:
        ConfigError: With both numbers.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != cluster.rank_count:
        raise ConfigError(
            f"{world_size} ranks were started, [cluster] dp_size {cluster.dp_size} x pp_size {cluster.pp_size} x "
            f"sp_size {cluster.sp_size} needs {cluster.rank_count} (torchrun --nproc-per-node, --nnodes)"
        )
