"""Planning, seen from the executor: open the job, hand in batches ahead of time, take plans and check them.

Rank 0 alone opens the job and hands in lengths; every rank takes its plans itself. Nobody waits for the planner within
a collective: a slow planner costs time, never a timeout among the ranks.
"""

import logging
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile
from infinipipe_contract.validate import validate
from infinipipe_executor.config import RunConfig
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import PeerLostError, PlanError
from infinipipe_executor.log_prefix import note
from infinipipe_executor.plan_client import PlanClient, PlannerRefusedError, PlannerUnavailableError, RankReport
from infinipipe_executor.stop import StopRequestedError, StopSignal

logger = logging.getLogger(__name__)


class Planning:
    """This rank's connection to the planner of the job.

    Args:
        client: Connection to the planner, which knows job and generation.
        rank: Global rank.
        profile: Cost model that plans are checked with.
        wait_timeout_s: Longest wait for one plan.
        stop: What ends a wait before its time.
    """

    def __init__(
        self, client: PlanClient, rank: int, profile: Profile, wait_timeout_s: float, stop: StopSignal | None = None
    ) -> None:
        self._client = client
        self._rank = rank
        self._profile = profile
        self._wait_timeout_s = wait_timeout_s
        self._stop = stop or StopSignal()

    def submit(self, step: int, batch: Batch) -> None:
        """Hand in the lengths of a step's batch (rank 0); returns at once, the plan is made meanwhile.

        A planner that is away or whose queue is full is waited for.

        Raises:
            PlannerUnavailableError: If no planner answers in time.
            BatchRefusedError: If the planner refuses the lengths.
            StopRequestedError: If a rank was told to end meanwhile.
        """
        if self._rank != 0:
            return

        def tell(waited_s: float) -> None:
            self._stop.check()
            logger.info("rank 0 waits %.0f s for the planner to take the batch of step %d", waited_s, step)

        self._client.submit_batch(
            step, batch.lengths_tokens, batch.target_token_count, timeout_s=self._wait_timeout_s, on_wait=tell
        )

    def fetch(self, step: int, batch: Batch) -> tuple[ExecutionPlan, float]:
        """Take the plan of a step and check it against the batch and the cluster.

        Returns:
            The plan and the seconds this rank waited for it.

        Raises:
            PlannerUnavailableError: If there is no plan in time.
            PlanFailedError: If the planner cannot plan the batch.
            PlanError: If the plan is corrupt, foreign, or does not fit the batch.
            StopRequestedError: If a rank was told to end meanwhile.
        """
        note(step=step)
        started_s = time.monotonic()

        def tell(waited_s: float) -> None:
            self._stop.check()
            logger.info("rank %d waits %.0f s for the plan of step %d", self._rank, waited_s, step)

        try:
            plan = self._client.fetch_plan(step, timeout_s=self._wait_timeout_s, on_wait=tell)
            validate(plan, batch.lengths_tokens, self._profile)
        except InvalidPlanError as error:
            raise PlanError(f"step {step}: {error} (from the planner at {self._client.address})") from error
        if plan.target_token_count != batch.target_token_count:
            raise PlanError(
                f"step {step}: the plan divides the loss by {plan.target_token_count} targets, "
                f"the batch has {batch.target_token_count}"
            )
        return plan, time.monotonic() - started_s

    def report(self, step: int, report: RankReport) -> None:
        """Hand in what this rank measured; a planner that is away or refuses costs the report, not the training."""
        try:
            self._client.report_step(step, report, on_wait=lambda _: self._stop.check())
        except (PlannerUnavailableError, PlannerRefusedError, StopRequestedError) as error:
            logger.warning("step %d: nothing reported: %s", step, error)


def open_planning(config: RunConfig, client: PlanClient, profile: Profile, store: Store, stop: StopSignal) -> Planning:
    """Open the job on rank 0 and tell its generation to the others.

    Args:
        config: The run.
        client: Connection to the planner.
        profile: Cost model of the job.
        store: The store of this start of the job.
        stop: What ends a wait for a plan before its time.

    Raises:
        PlannerUnavailableError: If no planner answers in time.
        JobRefusedError: If the planner refuses the job.
        PeerLostError: If rank 0 does not open the job in time.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    planner = config.planner
    generation = 0
    if rank == 0:
        logger.info("opening job %s at the planner %s", config.job.name, client.address)
        generation = client.create_job(
            config.job.name,
            profile,
            context_tokens=config.data.context_tokens,
            policy=planner.policy,
            max_slice_count=planner.max_slice_count,
        )
    if world_size > 1:
        generation = _share_generation(rank, generation, planner.wait_timeout_s, store)
    client.join_job(config.job.name, generation)
    note(generation=generation)
    return Planning(client, rank, profile, planner.wait_timeout_s, stop)


def _share_generation(rank: int, generation: int, timeout_s: float, store: Store) -> int:
    """Pass rank 0's generation through the store of the job: waiting for a planner there is no collective."""
    key = "infinipipe/generation"
    if rank == 0:
        store.set(key, str(generation))
        return generation
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except dist.DistStoreError as error:
        raise PeerLostError(f"rank {rank} waited {timeout_s:g} s for rank 0 to open the job") from error
    return int(store.get(key))
