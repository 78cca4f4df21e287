"""Planning, seen from the executor: open the job, hand in batches ahead of time, take plans and check them.

Rank 0 alone opens the job and hands in lengths; every rank takes its plans itself. Nobody waits for the planner within
a collective: a slow planner costs time, never a timeout among the ranks. Lengths are handed in by a thread of their
own: a planner that does not take those of the next step yet must not keep rank 0 from a step for which all hold a plan.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from infinipipe_contract.codec import plan_from_json, plan_to_json
from infinipipe_contract.errors import InvalidPlanError
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_contract.profile import Profile, extrapolation
from infinipipe_contract.simulate import Timeline, simulate
from infinipipe_contract.validate import validate
from infinipipe_executor.config import PlannerConfig, RunConfig
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.errors import PeerLostError, PlanError, PlannerRefusedError, PlannerUnavailableError
from infinipipe_executor.log_prefix import note
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.plan_client import PlanClient, RankReport
from infinipipe_executor.stop import StopRequestedError, StopSignal

logger = logging.getLogger(__name__)

# Seconds after which a rank that waits for what rank 0 hands on looks whether the run is to end.
HANDED_ON_S = 5.0

# Key of the newest step whose plan a rank has.
_HELD = "infinipipe/held-plan"


class Planning:
    """This rank's connection to the planner of the job.

    Args:
        client: Connection to the planner, which knows job and generation.
        rank: Global rank.
        profile: Cost model that plans are checked with.
        wait_timeout_s: Longest wait for one plan.
        stop: How this rank is told to end, which ends a wait before its time.
        options: How lengths are planned that are no step of the job; the job knows it of its steps.
        store: The store of this start of the job, through which rank 0 hands such plans on, and ranks know that others
            have the plan of a step; None for a single rank.
    """

    def __init__(
        self,
        client: PlanClient,
        rank: int,
        profile: Profile,
        wait_timeout_s: float,
        stop: StopSignal | None = None,
        *,
        options: PlannerConfig | None = None,
        store: Store | None = None,
    ) -> None:
        self._client = client
        self._rank = rank
        self._profile = profile
        self._wait_timeout_s = wait_timeout_s
        self._stop = stop or StopSignal()
        self._options = options or PlannerConfig()
        self._store = store
        self._has_warned = False
        self._hand_in_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hand-in")  # one: steps in order
        self._handed_in: dict[int, Future[int]] = {}

    @property
    def rank(self) -> int:
        """Global rank."""
        return self._rank

    @property
    def is_stop_requested(self) -> bool:
        """Whether this rank was told to end."""
        return self._stop.is_requested

    def submit(self, step: int, batch: Batch) -> None:
        """Start to hand in the lengths of a step's batch (rank 0); returns at once, the plan is made meanwhile.

        A planner that is away or whose queue is full is waited for beside the training; ``fetch`` of the step tells
        what became of it.
        """
        if self._rank != 0:
            return
        self._warn_once(step, batch)

        self._handed_in[step] = self._hand_in_thread.submit(
            self._client.submit_batch,
            step,
            batch.lengths_tokens,
            batch.target_token_count,
            timeout_s=self._wait_timeout_s,
            on_wait=self._teller(step, "for the planner to take the batch"),
        )

    def fetch(self, step: int, batch: Batch) -> tuple[ExecutionPlan, float]:
        """Take the plan of a step, whose lengths the planner has by then, and check it against batch and cluster.

        Returns:
            The plan and the seconds this rank waited for it.

        Raises:
            PlannerUnavailableError: If there is no plan in time, or no planner took the lengths; other ranks that have
                the plan already are let wait for ``connect_timeout_s`` only.
            BatchRefusedError: If the planner refused the lengths.
            PlanFailedError: If the planner cannot plan the batch.
            PlanError: If the plan is corrupt, foreign, or does not fit the batch.
            StopRequestedError: If a rank was told to end meanwhile.
        """
        note(step=step)
        started_s = time.monotonic()
        handed_in = self._handed_in.pop(step, None)
        if handed_in is not None:
            handed_in.result()  # hears of a stop itself
        try:
            tell = self._teller(step, "for the plan")
            plan = self._client.fetch_plan(step, timeout_s=self._wait_timeout_s, on_wait=tell)
            validate(plan, batch.lengths_tokens, self._profile)
        except InvalidPlanError as error:
            raise PlanError(f"step {step}: {error} (from the planner at {self._client.address})") from error
        if plan.target_token_count != batch.target_token_count:
            raise PlanError(
                f"step {step}: the plan divides the loss by {plan.target_token_count} targets, "
                f"the batch has {batch.target_token_count}"
            )
        if self._store is not None:
            with peers_watched(self._rank, f"the start of step {step}"):
                self._store.set(_HELD, str(step))
        return plan, time.monotonic() - started_s

    def plan_held_out(self, index: int, batch: Batch) -> ExecutionPlan:
        """Have a held-out batch planned (rank 0), hand the plan on to the other ranks, and check it.

        Args:
            index: Which of the held-out batches; each is planned once.
            batch: The batch.

        Raises:
            PlannerUnavailableError: If there is no plan in time.
            PlanFailedError: If the planner cannot plan the batch.
            PlanError: If the plan is corrupt or does not fit the batch.
            PeerLostError: If rank 0 has no plan in time.
            StopRequestedError: If a rank was told to end meanwhile.
        """
        try:
            plan = self._solve(index, batch) if self._rank == 0 else self._await_solved(index)
            validate(plan, batch.lengths_tokens, self._profile)
        except InvalidPlanError as error:
            raise PlanError(
                f"evaluation batch {index}: {error} (from the planner at {self._client.address})"
            ) from error
        return plan

    def _solve(self, index: int, batch: Batch) -> ExecutionPlan:
        def tell(waited_s: float) -> None:
            self._check_stop()
            logger.info("rank 0 waits %.0f s for the plan of evaluation batch %d", waited_s, index)

        plan = self._client.solve_plan(
            batch.lengths_tokens,
            self._profile,
            policy=self._options.policy,
            max_slice_count=self._options.max_slice_count,
            timeout_s=self._wait_timeout_s,
            on_wait=tell,
        )
        if self._store is not None:
            self._store.set(_held_out_key(index), plan_to_json(plan))
        return plan

    def _await_solved(self, index: int) -> ExecutionPlan:
        assert self._store is not None, "several ranks share a store"
        end_s, key = time.monotonic() + self._wait_timeout_s + HANDED_ON_S, _held_out_key(index)
        while True:
            self._check_stop()
            with peers_watched(self._rank, f"the wait for the plan of evaluation batch {index}"):
                try:
                    self._store.wait([key], timedelta(seconds=HANDED_ON_S))
                except dist.DistStoreError as error:
                    if time.monotonic() < end_s:
                        continue
                    raise PeerLostError(
                        f"rank {self._rank} waited {self._wait_timeout_s:g} s for rank 0 to hand on the plan of "
                        f"evaluation batch {index}"
                    ) from error
                return plan_from_json(self._store.get(key).decode())

    def _teller(self, step: int, what: str) -> Callable[[float], None]:
        """Make what tells of a wait for the plan of a step, and ends it where other ranks could not wait as long."""
        free_s = 0.0  # no other rank had the plan then

        def tell(waited_s: float) -> None:
            nonlocal free_s
            self._check_stop()
            logger.info("rank %d waits %.0f s %s of step %d", self._rank, waited_s, what, step)
            if not self._is_held(step):
                free_s = waited_s
            elif waited_s - free_s >= self._options.connect_timeout_s:
                raise PlannerUnavailableError(
                    f"rank {self._rank} waits for the plan of step {step}, which other ranks have had for up to "
                    f"{waited_s - free_s:.0f} s: it does not reach the planner at {self._client.address} any more "
                    "([planner] connect_timeout_s)"
                )

        return tell

    def _is_held(self, step: int) -> bool:
        """Whether a rank has the plan of a step; then it waits for the others in a collective, which has a limit."""
        if self._store is None:
            return False
        with peers_watched(self._rank, "a wait for the planner"):
            return self._store.check([_HELD]) and int(self._store.get(_HELD)) >= step

    def _check_stop(self) -> None:
        """Give up a wait if a rank was told to end; with another rank, what would tell so may be gone."""
        with peers_watched(self._rank, "a wait for the planner"):
            self._stop.check()

    def _warn_once(self, step: int, batch: Batch) -> None:
        """Say at the first batch that goes beyond what was measured that its times are a guess."""
        sentence = None if self._has_warned else extrapolation(self._profile, max(batch.lengths_tokens))
        if sentence is not None:
            self._has_warned = True
            logger.warning("step %d: %s", step, sentence)

    def replay(self, plan: ExecutionPlan) -> Timeline:
        """Tell when every pass of a plan is expected to run."""
        return simulate(plan.pipelines, self._profile)

    def report(self, step: int, report: RankReport) -> None:
        """Hand in what this rank measured; a planner that is away or refuses costs the report, not the training."""
        try:
            self._client.report_step(step, report, on_wait=lambda _: self._check_stop())
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
    return Planning(client, rank, profile, planner.wait_timeout_s, stop, options=planner, store=store)


def _held_out_key(index: int) -> str:
    return f"infinipipe/evaluation-plan/{index}"


def _share_generation(rank: int, generation: int, timeout_s: float, store: Store) -> int:
    """Pass rank 0's generation through the store of the job: waiting for a planner there is no collective."""
    key = "infinipipe/generation"
    if rank == 0:
        store.set(key, str(generation))
        return generation
    with peers_watched(rank, "the start of the job"):
        try:
            store.wait([key], timedelta(seconds=timeout_s))
        except dist.DistStoreError as error:
            raise PeerLostError(f"rank {rank} waited {timeout_s:g} s for rank 0 to open the job") from error
        return int(store.get(key))
