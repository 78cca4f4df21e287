"""Evaluation: the loss of held-out sequences, by the same planner and the same runner as training.

Batches are the held-out sequences in order, always the same ones. Each is planned once, when it is first evaluated, as
lengths that belong to no step of the job; of the plan only the forward passes run. Parameters, the order of the
training data and dropout are left alone, so a run trains the same with and without it.
"""

import logging
import math
import time

import torch.distributed as dist

from infinipipe_contract.plan import ExecutionPlan
from infinipipe_executor.agreement import check_agreement
from infinipipe_executor.config import EvaluationConfig
from infinipipe_executor.data.batch import Batch
from infinipipe_executor.data.corpus import Corpus
from infinipipe_executor.errors import DataError, DivergedError
from infinipipe_executor.metrics import MeasuredEvaluation
from infinipipe_executor.parallel.peers import peers_watched
from infinipipe_executor.pipeline.runner import StepRunner
from infinipipe_executor.planning import Planning
from infinipipe_executor.stop import StopRequestedError

logger = logging.getLogger(__name__)


class Evaluation:
    """Evaluates the held-out sequences on one rank; every rank makes the same calls.

    Args:
        config: Section ``[evaluation]``.
        corpus: The held-out sequences; the same on every rank.
        sequences_per_batch: Sequences of a batch but for the last one; as many as in training.
        planning: This rank's connection to the planner.
        host_group: All ranks, over a backend that carries CPU tensors.

    Raises:
        DataError: If none of the sequences that ``[evaluation] sequences`` takes has a target.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        corpus: Corpus,
        sequences_per_batch: int,
        planning: Planning,
        host_group: dist.ProcessGroup,
    ) -> None:
        self._config = config
        self._corpus = corpus
        self._sequences_per_batch = sequences_per_batch
        self._planning = planning
        self._host_group = host_group
        self._sequence_count = min(len(corpus), config.sequences or len(corpus))
        self._batch_count = -(-self._sequence_count // sequences_per_batch)
        self._plans: dict[int, ExecutionPlan] = {}
        if not any(self._batch(index).target_token_count for index in range(self._batch_count)):
            raise DataError(
                f"none of the first {self._sequence_count} held-out sequences has a target ([evaluation] sequences)"
            )

    def is_due(self, step: int, steps: int) -> bool:
        """Tell whether an evaluation belongs behind so many of ``steps`` steps; behind the last one it does."""
        return step % self._config.every_steps == 0 or step == steps

    def run(self, step: int, runner: StepRunner) -> MeasuredEvaluation | None:
        """Evaluate all batches.

        Args:
            step: Step behind which it is, for messages.
            runner: Runs the stage of this rank.

        Returns:
            Loss of the held-out data, the same on every rank; None if a rank was told to end meanwhile.

        Raises:
            PlanError: If a plan does not fit its batch, or the ranks hold different ones.
            DataError: If the ranks hold different held-out data.
            DivergedError: If the loss is not finite.
            PeerLostError: If another rank is gone.
        """
        started_s = time.monotonic()
        losses, target_count, token_count = [], 0, 0
        for index in range(self._batch_count):
            batch = self._batch(index)
            plan = self._plan(index, batch)
            plan_digest = None if plan is None else plan.digest
            with peers_watched(self._planning.rank, f"the start of the evaluation behind step {step}"):
                goes_on = check_agreement(step, plan_digest, batch.digest(), self._host_group)
            if plan is None or not goes_on:
                return None
            losses.append(runner.evaluate(plan, batch))
            target_count += batch.target_token_count
            token_count += sum(batch.lengths_tokens)
        loss = math.fsum(losses) / target_count
        if not math.isfinite(loss):
            raise DivergedError(f"step {step}: the loss of the held-out data is {loss}: training has diverged")
        return MeasuredEvaluation(loss, target_count, token_count, time.monotonic() - started_s)

    def _batch(self, index: int) -> Batch:
        first = index * self._sequences_per_batch
        last = min(first + self._sequences_per_batch, self._sequence_count)
        return Batch(tuple(self._corpus.sequence(sequence) for sequence in range(first, last)))

    def _plan(self, index: int, batch: Batch) -> ExecutionPlan | None:
        """Take the plan of a batch; None if a rank was told to end."""
        if self._planning.is_stop_requested:
            return None
        if index not in self._plans:
            try:
                self._plans[index] = self._planning.plan_held_out(index, batch)
            except StopRequestedError:
                return None
        return self._plans[index]
