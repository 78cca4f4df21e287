"""The trainer: one training step after another on this rank. Start reading here.

A step: take the plan that was made while the step before ran, hand in the batch of the step after, make sure that all
ranks hold the same plan and batch, run the plan, clip, update, tell.
"""

import logging
import math
from collections import deque

import torch
import torch.distributed as dist

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.agreement import check_agreement
from infinipipe_executor.config import RunConfig
from infinipipe_executor.cuda_memory import describe_memory
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import Corpus
from infinipipe_executor.data.sampler import BatchSampler
from infinipipe_executor.errors import DivergedError
from infinipipe_executor.mesh import Mesh
from infinipipe_executor.metrics import MeasuredStep, bubble_ratio, step_line
from infinipipe_executor.model.stage import Stage
from infinipipe_executor.parallel.grad_norm import clip_gradients
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.pipeline.runner import StepResult, StepRunner
from infinipipe_executor.plan_client import ActionMeasurement, RankReport
from infinipipe_executor.planning import Planning

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
    """

    def __init__(
        self,
        config: RunConfig,
        mesh: Mesh,
        stage: Stage,
        corpus: Corpus,
        planning: Planning,
        host_group: dist.ProcessGroup,
    ) -> None:
        self._config = config
        self._mesh = mesh
        self._stage = stage
        self._corpus = corpus
        self._planning = planning
        self._host_group = host_group
        self._sampler = BatchSampler(len(corpus), config.data.sequences_per_batch, config.job.seed)
        self._runner = StepRunner(stage, mesh, shards_gradients=config.cluster.shards_gradients)
        self._optimizer = torch.optim.AdamW(
            stage.parameters(),
            lr=config.optimizer.learning_rate,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
        )

    def train(self) -> None:
        """Run all steps; the planner is always one batch ahead."""
        steps = self._config.job.steps
        upcoming = deque([self._hand_in(0)])
        for step in range(steps):
            if step + 1 < steps:
                upcoming.append(self._hand_in(step + 1))
            self.train_step(step, upcoming.popleft())

    def train_step(self, step: int, batch: Batch) -> None:
        """Train one batch whose lengths were handed in before.

        Raises:
            PlanError: If there is no plan that fits the batch, or the ranks hold different ones.
            DataError: If the ranks hold different batches.
            DivergedError: If the loss or the gradients are not finite; the parameters stay as they were.
            PeerLostError: If another rank is gone.
        """
        plan, wait_s = self._planning.fetch(step, batch)
        with peers_watched(self._mesh.rank, f"the start of step {step}"):
            check_agreement(step, plan.digest, batch.digest(), self._host_group)
        if not batch.target_token_count:
            self._skip(step, batch)
            return
        result = self._runner.run(plan, batch)
        grad_norm = clip_gradients(self._stage, self._mesh, self._config.optimizer.max_grad_norm)
        _check_finite(step, result.loss, grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._tell(step, plan, result, grad_norm, wait_s)

    def _hand_in(self, step: int) -> Batch:
        """Draw the batch of a step and hand in its lengths."""
        batch = Batch(tuple(self._corpus.sequence(index) for index in self._sampler.indices(step)))
        self._planning.submit(step, batch)
        return batch

    def _skip(self, step: int, batch: Batch) -> None:
        """Leave the model as it is: nothing in the batch says how to change it, and weight decay alone would."""
        if self._mesh.rank == 0:
            logger.warning(
                "step %d skipped: none of its %d tokens in %d sequences has a target; the parameters stay as they are",
                step,
                sum(batch.lengths_tokens),
                len(batch.sequences),
            )

    def _tell(self, step: int, plan: ExecutionPlan, result: StepResult, grad_norm: float, wait_s: float) -> None:
        """Print the step on rank 0 and report this rank's measurements to the planner."""
        busy_s = sum(span.end_s - span.start_s for span in result.spans)
        end_s = result.spans[-1].end_s if result.spans else 0.0
        with peers_watched(self._mesh.rank, f"the end of step {step}"):
            times = self._gather([busy_s, end_s])
        makespan_s = max(end for _, end in times)
        if self._mesh.rank == 0:
            measured = MeasuredStep(
                loss=result.loss,
                grad_norm=grad_norm,
                makespan_s=makespan_s,
                bubble_ratio=bubble_ratio([busy for busy, _ in times], makespan_s),
                plan_wait_s=wait_s,
            )
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
