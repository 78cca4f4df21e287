"""The trainer: one training step after another on this rank. Start reading here.

A step: take the plan that was made while the step before ran, hand in the batch of the step after, make sure that all
ranks hold the same plan and batch, run the plan, clip, update, tell; save and evaluate when it is time to. A run that
is told to end does so before a step, on all ranks at the same one.
"""

import hashlib
import logging
import math
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from infinipipe_contract.model_flops import useful_flops
from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.agreement import check_agreement
from infinipipe_executor.checkpoint_files import RunFacts
from infinipipe_executor.checkpoint_io import Checkpoints
from infinipipe_executor.checkpoint_state import load_state
from infinipipe_executor.config import RunConfig
from infinipipe_executor.cuda_memory import describe_memory
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import Corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.device_peak import device_peak_flops
from infinipipe_executor.errors import CheckpointError, DivergedError
from infinipipe_executor.evaluation import Evaluation
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.metrics import (
    MeasuredStep,
    bubble_ratio,
    evaluation_line,
    evaluation_scalars,
    sequence_lengths,
    step_line,
    step_scalars,
)
from infinipipe_executor.metrics_sinks import Sinks
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.optimizer import build_optimizer, set_learning_rate, state_bytes
from infinipipe_executor.parallel.grad_norm import clip_gradients
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.pipeline.runner import StepResult, StepRunner
from infinipipe_executor.plan_client import ActionMeasurement, RankReport
from infinipipe_executor.planning import Planning
from infinipipe_executor.schedule import learning_rate
from infinipipe_executor.step_errors import PassSeconds, StepErrors, pass_seconds
from infinipipe_executor.stop import StopRequestedError

logger = logging.getLogger(__name__)


class Trainer:
    """Trains one rank's stage.

    Args:
        config: The run.
        mesh: Where this rank stands.
        stage: This rank's part of the model.
        corpus: What is trained on; the same on every rank.
        planning: This rank's connection to the planner.
        host_group: All ranks, over a backend that carries CPU tensors.
        checkpoints: Where the run is saved; None saves nothing.
        sinks: Where rank 0 writes metrics.
        evaluation: Evaluates held-out data; None evaluates nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        stage: Stage,
        corpus: Corpus,
        planning: Planning,
        host_group: dist.ProcessGroup,
        *,
        checkpoints: Checkpoints | None = None,
        sinks: Sinks | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        self._config = config
        self._mesh = mesh
        self._stage = stage
        self._corpus = corpus
        self._planning = planning
        self._host_group = host_group
        self._checkpoints = checkpoints
        self._sinks = sinks or Sinks([])
        self._evaluation = evaluation
        self._first_step = 0
        self._sampler = BatchSampler(len(corpus), config.data.sequences_per_batch, config.job.seed)
        self._runner = StepRunner(
            stage, mesh, shards_gradients=config.cluster.shards_gradients, z_loss=config.optimizer.z_loss
        )
        self._optimizer = build_optimizer(stage, config.optimizer)
        self._errors = StepErrors(mesh.pp_size, mesh.sp_size)
        self._peak_flops = device_peak_flops(mesh.device, stage.dtype, config.cluster.device_peak_tflops)

    def resume(self, checkpoint: Path, facts: RunFacts, group: dist.ProcessGroup) -> None:
        """Take the state of a checkpoint of any layout, and go on with the first batch that it has not seen.

        Args:
            checkpoint: A whole one.
            facts: What it says about its run.
            group: All ranks, over gloo.

        Raises:
            CheckpointError: If the checkpoint does not hold what this model needs.
        """
        with peers_watched(self._mesh.rank, f"loading checkpoint {checkpoint}"):
            load_state(checkpoint, self._stage, self._optimizer, group)
        self._first_step = facts.step

    def train(self) -> bool:
        """Run the steps that are left; the planner is always one batch ahead.

        Returns:
            Whether all steps are done; False if the run was told to end.

        Raises:
            CheckpointError: If what was trained last could not be saved.
        """
        steps = self._config.job.steps
        upcoming = deque([self._hand_in(self._first_step)])
        for step in range(self._first_step, steps):
            if step + 1 < steps:
                upcoming.append(self._hand_in(step + 1))
            if not self.train_step(step, upcoming.popleft()):
                self._save_last(step)
                self._say_errors()
                self._say_ended(step)
                return False
            if step + 1 < steps:
                self._save_if_due(step + 1)
            else:
                self._save_last(steps)
            self._evaluate_if_due(step)
        self._say_errors()
        return True

    def train_step(self, step: int, batch: Batch) -> bool:
        """Train one batch whose lengths were handed in before.

        Returns:
            Whether it was trained; False if a rank was told to end, then nothing has changed.

        Raises:
            PlanError: If there is no plan that fits the batch, or the ranks hold different ones.
            DataError: If the ranks hold different batches.
            DivergedError: If the loss or the gradients are not finite; the parameters stay as they were.
            PeerLostError: If another rank is gone.
        """
        started_s = time.monotonic()
        plan, wait_s = self._take_plan(step, batch)
        plan_digest = None if plan is None else plan.digest
        with peers_watched(self._mesh.rank, f"the start of step {step}"):
            goes_on = check_agreement(step, plan_digest, batch.digest(), self._host_group)
        if plan is None or not goes_on:
            return False
        if not batch.target_token_count:
            self._skip(step, batch)
            return True
        _seed_dropout(self._config.job.seed, step, self._mesh.rank)
        result = self._runner.run(plan, batch)
        grad_norm = clip_gradients(self._stage, self._mesh, self._config.optimizer.max_grad_norm)
        _check_finite(step, result.loss, grad_norm)
        set_learning_rate(self._optimizer, learning_rate(self._config.optimizer, step, self._config.job.steps))
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._mesh.device.type == "cpu":  # the allocator of CUDA has seen it
            result = replace(result, peak_bytes=result.peak_bytes + state_bytes(self._optimizer))
        self._tell(step, plan, result, grad_norm, wait_s, started_s)
        return True

    def _hand_in(self, step: int) -> Batch:
        """Draw the batch of a step and start to hand in its lengths."""
        batch = Batch(tuple(self._corpus.sequence(index) for index in self._sampler.indices(step)))
        self._planning.submit(step, batch)
        return batch

    def _say_errors(self) -> None:
        """Say how good the predictions were; only rank 0 knows."""
        summary = self._errors.summary()
        if summary is not None:
            logger.info("%s", summary)

    def _say_ended(self, step: int) -> None:
        """Say what is left of a run that was told to end."""
        if self._mesh.rank == 0:
            saved = "nothing was saved: there is no section [checkpoint]"
            if self._checkpoints is not None:
                saved = f"checkpoint step-{step} holds them" if step else "there is nothing to save"
            logger.info("ended by SIGTERM: %d of %d steps are done; %s", step, self._config.job.steps, saved)

    def _take_plan(self, step: int, batch: Batch) -> tuple[ExecutionPlan | None, float]:
        """Wait for the plan of a step; None if a rank was told to end before there was one."""
        if self._planning.is_stop_requested:
            return None, 0.0
        try:
            return self._planning.fetch(step, batch)
        except StopRequestedError:
            return None, 0.0

    def _evaluate_if_due(self, step: int) -> None:
        """Evaluate behind a step when it is time to, and tell; a run that is told to end meanwhile has no result."""
        steps = self._config.job.steps
        if self._evaluation is None or not self._evaluation.is_due(step + 1, steps):
            return
        measured = self._evaluation.run(step, self._runner)
        if self._mesh.rank != 0:
            return
        if measured is None:
            logger.warning("step %d: the evaluation behind it was given up: a rank was told to end (SIGTERM)", step)
        else:
            self._sinks.put(step, evaluation_scalars(measured))
            logger.info("%s", evaluation_line(step, steps, measured))

    def _save_if_due(self, step: int) -> None:
        """Start to save the state behind ``step`` steps when it is time to, and tell about a save that is over."""
        if self._checkpoints is None:
            return
        self._checkpoints.poll()
        if self._checkpoints.is_due(step):
            self._checkpoints.save(step, self._stage, self._optimizer)

    def _save_last(self, step: int) -> None:
        """Make sure that the state behind ``step`` steps is on disk before the run ends."""
        if self._checkpoints is None:
            return
        self._checkpoints.finish()
        if self._checkpoints.newest_step < step and step > 0:
            self._checkpoints.save(step, self._stage, self._optimizer)
            saved = self._checkpoints.finish()
            if saved is None or saved.path is None:
                raise CheckpointError(
                    f"the run ends after {step} steps, and they could not be saved: {saved.problem if saved else ''} "
                    "([checkpoint] folder)"
                )

    def _skip(self, step: int, batch: Batch) -> None:
        """Leave the model as it is: nothing in the batch says how to change it, and weight decay alone would."""
        if self._mesh.rank == 0:
            logger.warning(
                "step %d skipped: none of its %d tokens in %d sequences has a target; the parameters stay as they are",
                step,
                sum(batch.lengths_tokens),
                len(batch.sequences),
            )

    def _tell(
        self, step: int, plan: ExecutionPlan, result: StepResult, grad_norm: float, wait_s: float, started_s: float
    ) -> None:
        """Print the step on rank 0 and report this rank's measurements to the planner."""
        busy_s = sum(span.end_s - span.start_s for span in result.spans)
        end_s = result.spans[-1].end_s if result.spans else 0.0
        with peers_watched(self._mesh.rank, f"the end of step {step}"):
            rows = self._gather([busy_s, end_s, result.peak_bytes, *pass_seconds(result.spans)])
        makespan_s = max(end for _, end, *_ in rows)
        if self._mesh.rank == 0:
            self._errors.add(self._planning.replay(plan), makespan_s, [PassSeconds(*row[3:]) for row in rows])
            measured = MeasuredStep(
                loss=result.loss,
                z_loss=result.z_loss,
                grad_norm=grad_norm,
                makespan_s=makespan_s,
                bubble_ratio=bubble_ratio([busy for busy, *_ in rows], makespan_s),
                plan_wait_s=wait_s,
                step_s=time.monotonic() - started_s,
                peak_bytes=max(peak_bytes for _, _, peak_bytes, *_ in rows),
                learning_rate=self._optimizer.param_groups[0]["lr"],
                device_flops=useful_flops(self._stage.config.shape, sequence_lengths(plan)) / len(rows),
                device_peak_flops=self._peak_flops,
                median_error_ratio=self._errors.median_error_ratio,
            )
            self._sinks.put(step, step_scalars(plan, measured))
            logger.info("%s", step_line(step, self._config.job.steps, plan, measured))
            if self._mesh.device.type == "cuda":
                logger.info("%s", describe_memory(self._mesh.device))
        self._planning.report(step, self._report(result, busy_s, wait_s))

    def _report(self, result: StepResult, busy_s: float, wait_s: float) -> RankReport:
        first_s, end_s = (result.spans[0].start_s, result.spans[-1].end_s) if result.spans else (0.0, 0.0)
        return RankReport(
            rank=self._mesh.rank,
            replica_index=self._mesh.dp_rank,
            stage_index=self._mesh.pp_rank,
            step_s=end_s - first_s,
            busy_s=busy_s,
            plan_wait_s=wait_s,
            peak_bytes=int(result.peak_bytes),
            loss=result.loss,
            first_start_s=first_s,
            actions=[
                ActionMeasurement(
                    span.chunk_id.pipeline_index,
                    span.kind,
                    span.chunk_id.chunk_index,
                    span.start_s - first_s,
                    span.end_s - first_s,
                )
                for span in result.spans
            ],
        )

    def _gather(self, numbers: list[float]) -> list[list[float]]:
        mine = torch.tensor(numbers, dtype=torch.float64)
        theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._host_group))]
        dist.all_gather(theirs, mine, group=self._host_group)
        return [tensor.tolist() for tensor in theirs]


def _check_finite(step: int, loss: float, grad_norm: float) -> None:
    """End the run before an update destroys the model; both values are the same on every rank, so all of them end."""
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    raise DivergedError(
        f"step {step}: training has diverged: loss {loss}, gradient norm {grad_norm}; no update was made in this step. "
        'Try a smaller [optimizer] learning_rate or max_grad_norm, or [model] dtype = "float32", or look at the batch'
    )


def _seed_dropout(seed: int, step: int, rank: int) -> None:
    """Let the masks of a step follow from seed, step and rank, so that a run that goes on draws the same ones."""
    digest = hashlib.sha256(f"dropout {seed} {step} {rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big", signed=True))
