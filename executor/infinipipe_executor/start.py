"""Start: the ranks of a job come together once each of them has its data.

Machines prepare data at their own pace, which may take long; they wait for each other here, outside of any collective
and with a limit of their own, so that the timeout of collectives only ever measures ranks that run. Entry point:
``open_mesh``.
"""

import logging
import os
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from infinipipe_executor.config import ClusterConfig
from infinipipe_executor.errors import PeerLostError
from infinipipe_executor.mesh import BACKENDS, Mesh, init_mesh
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.parallel.warm_up import warm_up

logger = logging.getLogger(__name__)

# Seconds until the first word about a wait; the pauses between the next ones double up to the largest.
FIRST_PROGRESS_S, MAX_PROGRESS_S = 5.0, 60.0

_COUNT, _ALL = "infinipipe/ready-count", "infinipipe/all-ready"


def open_mesh(cluster: ClusterConfig) -> tuple[Mesh, Store]:
    """Wait until every rank has come here, then form the mesh and open all of its connections.

    Returns:
        The mesh, and the store of this start of the job.

    Raises:
        PeerLostError: If a rank does not come within ``start_timeout_s``, or a connection does not open.
    """
    store = join_ranks(cluster)
    timeout_s = cluster.collective_timeout_s
    mesh = init_mesh(cluster.pp_size, cluster.sp_size, cluster.device, timeout_s, dp_size=cluster.dp_size)
    warm_up(mesh, timeout_s)
    return mesh, store


def join_ranks(cluster: ClusterConfig) -> Store:
    """Wait until every rank has come here, then open the process group of the job.

    Ranks find each other by what torchrun tells them; without it there is one rank and nobody to find.

    Returns:
        The store of this start of the job.

    Raises:
        PeerLostError: If a rank does not come within ``start_timeout_s``; names those that are missing.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    start_timeout, timeout = (timedelta(seconds=s) for s in (cluster.start_timeout_s, cluster.collective_timeout_s))
    with peers_watched(rank, "the start of the job"):
        store = _open_store(rank, world_size, start_timeout)
        await_all(store, rank, world_size, cluster.start_timeout_s)
        store.set_timeout(timeout)
        dist.init_process_group(
            BACKENDS[cluster.device], store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    return store


def _open_store(rank: int, world_size: int, timeout: timedelta) -> Store:
    """Open the store of this start of the job.

    A process that torchrun did not start is alone, and so is its store.

    torchrun keeps one store through all its restarts, and what an earlier start left there (who is ready, where the
    ranks listen) would mislead this one. Where torchrun is told not to, every start has a store of its own.
    """
    if "WORLD_SIZE" not in os.environ:
        return HashStore()
    store: Store
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    if os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1":
        return store
    return PrefixStore(f"infinipipe/start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def await_all(store: Store, rank: int, world_size: int, timeout_s: float) -> None:
    """Tell that this rank is ready, and wait for the others.

    Args:
        store: Shared by the ranks.
        rank: This rank.
        world_size: Ranks of the job.
        timeout_s: Seconds to wait at most.

    Raises:
        PeerLostError: If time is up; names the ranks that are missing.
    """
    store.set(_key(rank), "ready")
    if store.add(_COUNT, 1) == world_size:
        store.set(_ALL, "ready")
    started_s, pause_s = time.monotonic(), FIRST_PROGRESS_S
    while True:
        # Never 0, which stores take for no limit at all.
        left_s = max(0.01, timeout_s - (time.monotonic() - started_s))
        try:
            store.wait([_ALL], timedelta(seconds=min(pause_s, left_s)))
        except dist.DistStoreError as error:
            waited_s = time.monotonic() - started_s
            missing = [str(other) for other in range(world_size) if not store.check([_key(other)])]
            if not missing:
                continue  # the last one came just now
            who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            if waited_s >= timeout_s:
                raise PeerLostError(
                    f"rank {rank} waited {timeout_s:g} s for {who} to prepare the data ([cluster] start_timeout_s)"
                ) from error
            logger.info("rank %d waits %.0f s for %s to prepare the data", rank, waited_s, who)
            pause_s = min(2 * pause_s, MAX_PROGRESS_S)
        else:
            return


def _key(rank: int) -> str:
    return f"infinipipe/ready/{rank}"
